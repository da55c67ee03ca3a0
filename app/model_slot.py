"""How a model comes into memory: what is wanted of it, what is chosen so that it fits, and the engine that is started so."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from pinyon.app.counted import memory
from pinyon.app.devices import chosen_cores
from pinyon.app.fit import layout, remedy
from pinyon.app.known_sizes import sizes_of
from pinyon.app.kv_budget import KvBudget
from pinyon.app.loaded_model import LoadedModel
from pinyon.app.residents import Resident, Wanted
from pinyon.app.settings import Folders, Settings
from pinyon.engine import kv_folder
from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig, Limits, check_context
from pinyon.engine.errors import EngineCrashedError, EngineError, EngineStartError, ModelQuarantinedError
from pinyon.engine.grammar_check import GrammarChecker
from pinyon.models.catalog import slug
from pinyon.models.disk import private_folder
from pinyon.models.memory.fit import Budget, Fit, Wish, fit
from pinyon.models.memory.kv import KvType
from pinyon.models.model_record import Record
from pinyon.models.template_sandbox import TemplateSandbox

if TYPE_CHECKING:
    from pinyon.models.memory.sizes import ModelSizes


@dataclass
class Kit:
    """What the models of one service share. `quarantined` are those whose load killed the worker, by path."""

    folders: Folders
    settings: Settings
    sandbox: TemplateSandbox = field(default_factory=TemplateSandbox)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    kv: KvBudget = field(default_factory=lambda: KvBudget(0))
    quarantined: dict[Path, ModelQuarantinedError] = field(default_factory=dict)


class Slot(Resident):
    """A model's place, from the moment when its load begins. `listeners` are told the loaded fraction, which is `loaded_share`."""

    def __init__(
        self,
        record: Record,
        config: EngineConfig,
        fit: Fit,
        kit: Kit,
        held: "Held",
    ) -> None:
        super().__init__(record.path, record.name, fit, config.kv_ram_cap_bytes)
        self.record = record
        self.config = config
        self.engine = EngineClient(config, _log_of(record, kit.folders))
        self.model: LoadedModel | None = None
        self.listeners: set[Callable[[float], None]] = set()
        self.loaded_share = 0.0
        self._kit = kit
        self._held = held

    @contextlib.contextmanager
    def heard(self, listener: Callable[[float], None]) -> Iterator[None]:
        """Have a listener told the loaded fraction."""
        self.listeners.add(listener)
        try:
            yield
        finally:
            self.listeners.discard(listener)

    def tell(self, fraction: float) -> None:
        self.loaded_share = fraction
        for listener in self.listeners:
            listener(fraction)

    async def load(self) -> None:
        """As Resident.load. Raises EngineError."""
        kit = self._kit
        warm_up = asyncio.create_task(kit.sandbox.start())
        try:
            info = await self.engine.start(self.tell)
        except ModelQuarantinedError as error:
            kit.quarantined[self.path] = error
            raise
        finally:
            with contextlib.suppress(Exception):  # a sandbox that cannot start is reported by the first render
                await warm_up
        self.model = LoadedModel(
            self.record,
            self.engine,
            info,
            kit.sandbox,
            kit.grammars,
            fit=self.fit,
            cache_bytes=self.cache_bytes,
            held=lambda: self._held(self),
            kv_folder=kit.folders.kv,
            deterministic=kit.settings.deterministic,
            speculate=kit.settings.speculate,
            why_no_disk=kit.kv.why_no_disk,
        )

    async def close(self) -> None:
        await self.engine.close()

    async def share_cache(self, models: int, spare_bytes: int) -> None:
        """As Resident.share_cache. What cannot be given up stays counted."""
        kv, config = self._kit.kv, self.config
        ram_bytes = min(kv.ram_cap_bytes // models, self.cache_bytes + spare_bytes)
        disk_bytes = 0 if kv.folder is None or config.kv_folder is None else kv.disk_cap_bytes // models
        if (ram_bytes, disk_bytes) == (config.kv_ram_cap_bytes, config.kv_disk_cap_bytes):
            return
        try:
            unused_bytes = 0 if kv.folder is None else await asyncio.to_thread(kv_folder.unused_bytes, kv.folder)
            await self.engine.resize_kv(ram_bytes, disk_bytes, unused_bytes)
        except EngineCrashedError:
            pass  # it holds nothing any more, and starts again with what it was told
        except (EngineError, OSError):
            return
        self.config = msgspec.structs.replace(config, kv_ram_cap_bytes=ram_bytes, kv_disk_cap_bytes=disk_bytes)
        self.cache_bytes = ram_bytes
        if self.model is not None:
            self.model.cache_bytes = ram_bytes

    def used_bytes(self) -> int:
        """As Resident.used_bytes. Where the system does not tell shared pages apart, all of the file's count as in memory."""
        if (pid := self.engine.running_pid) is None:
            return 0
        try:
            taken = psutil.Process(pid).memory_info()
        except psutil.Error:
            return 0
        return max(0, taken.rss - getattr(taken, "shared", self.fit.plan.ram.mapped_bytes))


Held = Callable[[Slot], AbstractContextManager[object]]


class WantedModel(Wanted[Slot]):
    """A model by its record, with at least `context_tokens` and keys and values in `kv_type`, None for what suits it and the machine."""

    def __init__(
        self,
        record: Record,
        context_tokens: int | None,
        kit: Kit,
        held: "Held",
        *,
        is_forced: bool,
        kv_type: KvType | None = None,
    ) -> None:
        self.path = record.path
        self.name = record.name
        self.is_forced = is_forced
        self._record = record
        self._asked = context_tokens
        self._asked_kv_type = kv_type
        self._kit = kit
        self._held = held
        self._sizes: ModelSizes | None = None

    @property
    def _context(self) -> int | None:
        return self._kit.settings.context if self._asked is None else self._asked

    @property
    def _kv_type(self) -> KvType | None:
        setting = self._kit.settings.kv_type
        return KvType(setting) if self._asked_kv_type is None and setting is not None else self._asked_kv_type

    async def prepare(self) -> None:
        """As Wanted.prepare. Raises ModelError, ModelQuarantinedError, DoesNotFitError."""
        if self.path in self._kit.quarantined:
            raise self._kit.quarantined[self.path]
        self._sizes = sizes = await asyncio.to_thread(sizes_of, self._record, self._kit.folders.sizes)
        if self._context is not None and sizes.trained_context:
            check_context(self._context, sizes.trained_context)

    def choose(self, budget: Budget, beside: Sequence[Slot]) -> Fit:
        """As Wanted.choose."""
        assert self._sizes is not None, "it is prepared"
        settings = self._kit.settings
        wish = Wish(self._context, self._kv_type, settings.gpu_layers)
        return fit(self._sizes, budget.less_ram(self._kept_bytes(beside)), layout, wish)

    def make(self, fit: Fit, budget: Budget, beside: Sequence[Slot]) -> Slot:
        """As Wanted.make. Raises EngineStartError."""
        kit, choice = self._kit, fit.plan.choice
        left_bytes = budget.ram_bytes - fit.plan.ram.total_bytes
        disk_bytes = kit.kv.granted_disk([slot.config.kv_disk_cap_bytes for slot in beside])
        config = EngineConfig(
            model_path=os.fsencode(self.path),
            threads=chosen_cores(kit.settings).threads,
            context_tokens=fit.context_tokens or None,
            kv_ram_cap_bytes=kit.kv.granted_ram([slot.cache_bytes for slot in beside], left_bytes),
            kv_folder=os.fsencode(kit.kv.folder) if kit.kv.folder is not None and disk_bytes else None,
            kv_disk_cap_bytes=disk_bytes,
            full_window=choice.kv.full_window,
            kv_type=choice.kv.type.value,
            calibration_folder=os.fsencode(kit.folders.calibration),
            limits=Limits(
                queue=kit.settings.max_queued,
                client_queue=kit.settings.max_queued_per_client,
                stall_s=kit.settings.stall_ms / 1000,
                long_share=kit.settings.long_request_share,
            ),
            answer_within_s=kit.settings.engine_timeout_s,
        )
        if budget.gpus:
            config = msgspec.structs.replace(
                config, gpu_layers=choice.gpu_layers, cpu_expert_layers=choice.cpu_expert_layers
            )
        return Slot(self._record, config, fit, kit, self._held)

    def is_served_by(self, resident: Slot) -> bool:
        """As Wanted.is_served_by. What was aimed at and did not fit would not be reached by another load."""
        has_type = self._asked_kv_type in {None, resident.fit.plan.choice.kv.type, resident.fit.wanted_kv_type}
        return has_type and (
            self._asked is None or self._asked <= max(resident.fit.context_tokens, resident.fit.wanted_context)
        )

    def shortage(self, fit: Fit, budget: Budget, beside: Sequence[Slot]) -> str:
        """As Wanted.shortage."""
        kept_bytes = self._kept_bytes(beside)
        kept = f"; {memory(kept_bytes)} are set aside for computed prompts" if kept_bytes else ""
        return f"{self.name} {remedy(fit, budget.less_ram(kept_bytes))}{kept}"

    def _kept_bytes(self, beside: Sequence[Slot]) -> int:
        return self._kit.kv.reserved_bytes([slot.cache_bytes for slot in beside])


def _log_of(record: Record, folders: Folders) -> Path:
    try:
        return private_folder(folders.logs) / f"{slug(record.name)}.log"
    except OSError as error:
        raise EngineStartError(f"the engine process cannot be started without a log: {error}") from error
