"""The only door to engines. asyncio; holds the models in memory, by name, and what is kept of KV."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pinyon.app import kv_files
from pinyon.app.ask import Ask
from pinyon.app.devices import gpus_here
from pinyon.app.fit import budget
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.kv_budget import KvBudget, KvClaim, kv_budget
from pinyon.app.loaded_model import LoadedModel
from pinyon.app.model_slot import Kit, Slot, WantedModel
from pinyon.app.residents import Residents
from pinyon.app.settings import Folders, Settings
from pinyon.app.wire import Room
from pinyon.engine.client import EngineState
from pinyon.engine.errors import EngineCrashedError, ModelLoadError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Removed
from pinyon.engine.meters import Meters
from pinyon.models.machine.ram import read_ram
from pinyon.models.memory.fit import Budget
from pinyon.models.memory.kv import KvType
from pinyon.models.model_record import Record
from pinyon.models.store import Store


class Model(Protocol):
    """A model that is ready to answer, in this process or in a server."""

    @property
    def name(self) -> str: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def kv_type(self) -> str:
        """How keys and values are stored: f16, q8_0, q4_0."""

    @property
    def threads(self) -> int: ...
    @property
    def compromises(self) -> tuple[str, ...]:
        """What was given up so that it fits into memory, in words."""

    @property
    def why_no_disk(self) -> str:
        """Why no KV is kept on disk; empty where it is."""

    async def meters(self) -> Meters | None:
        """Return what its engine holds and does now; None where it is not loaded any more, or too busy to tell."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the weights in hex; empty while it is unknown."""

    def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        """Yield the events of an ask; the last one is Finished or Failed. Closing the iterator early cancels it.

        Raises:
            TemplateError: before the first event: the model has no template, or its template does not take the messages.
        """

    async def cancel(self, ask_id: str) -> None:
        """End an ask early; its events get their last one."""

    async def estimate(self, ask: Ask) -> Estimate:
        """Return what an ask would find in the cache if it began now. Changes nothing.

        Raises:
            TemplateError: as `generate`.
            EngineError: the ask would fail, as ContextOverflowError where the prompt does not fit.
        """

    async def count(self, text: str) -> int:
        """Return how many tokens a piece of text has by itself.

        Raises:
            ContextOverflowError: certainly more than the context holds; counting them could take minutes.
            EngineError: it cannot be counted.
        """


class Service:
    """Resolves names, checks files, runs engines. Use as an async context manager: leaving it ends every child.

    Unless it keeps `several`, the model before leaves memory for the next one, and stays until then. Of several, each leaves the setting
    `keep_alive_s` after its last request, but for the one that is `pinned` by its file's path.
    """

    def __init__(
        self, folders: Folders, settings: Settings, *, several: bool = False, pinned: Path | None = None
    ) -> None:
        self.store = Store(folders.models)
        self._kit = Kit(folders, settings)
        self._several = several
        self._pinned = pinned
        self._claim = KvClaim()
        self._residents = Residents[Slot](self._free, several=several)

    @property
    def models(self) -> tuple[LoadedModel, ...]:
        """The models in memory, the last used first."""
        return tuple(slot.model for slot in self._residents.here if slot.model is not None)

    @property
    def loading(self) -> tuple[Slot, ...]:
        """Those that are being loaded, the last asked for first."""
        return tuple(slot for slot in self._residents.here if slot.model is None)

    @property
    def loaded(self) -> LoadedModel | None:
        """The model in memory that was used last."""
        return next(iter(self.models), None)

    @property
    def engine_state(self) -> EngineState:
        """That of the model that was used last."""
        return next((slot.engine.state for slot in self._residents.here), EngineState.STOPPED)

    def called(self, name: str) -> LoadedModel | None:
        """Return the model in memory with this name, or this file's path."""
        return next((model for model in self.models if model.is_called(name)), None)

    async def load(
        self,
        name: str,
        context_tokens: int | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        is_forced: bool = False,
        kv_type: KvType | None = None,
    ) -> LoadedModel:
        """As `using`, without holding it: it may leave memory again."""
        async with self.using(name, context_tokens, on_progress, is_forced=is_forced, kv_type=kv_type) as model:
            return model

    @contextlib.asynccontextmanager
    async def using(
        self,
        name: str,
        context_tokens: int | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        keep_alive: KeepAlive | None = None,
        is_forced: bool = False,
        kv_type: KvType | None = None,
    ) -> AsyncIterator[LoadedModel]:
        """Load a model by name or path unless it is loaded with `context_tokens` or more and this `kv_type`, and keep it as long as the
        context lasts. None is the setting's, else what suits the model and the machine.

        `on_progress` is told the loaded fraction. One that `is_forced` is loaded although it does not fit into memory. `keep_alive` None is
        the setting's.

        Raises:
            ModelError: no such model, or its file cannot be used.
            DoesNotFitError: it does not fit into what is free for models, whatever leaves; or the model was trained for less context.
            NoRoomError: it does not fit beside the models that are answering, and these went on for too long.
            ModelLoadError: the engine cannot load it.
            ModelSlotError: it is answering, and has less context or another type of KV.
        """
        known = self.called(name)
        record = known.record if known is not None else await asyncio.to_thread(self._runnable, name)
        kit, slots = self._kit, self._residents
        wanted = WantedModel(record, context_tokens, kit, slots.held, is_forced=is_forced, kv_type=kv_type)
        with contextlib.ExitStack() as listening:

            def on_hold(slot: Slot) -> None:
                slot.keep_alive_s = self._keep_alive_s(slot, keep_alive)
                if on_progress is not None:
                    listening.enter_context(slot.heard(on_progress))

            async with slots.using(wanted, on_hold) as slot:
                listening.close()
                assert slot.model is not None, "it is loaded"
                yield slot.model

    async def meters(self, path: Path | None = None) -> Meters | None:
        """Return what the engine of a model holds and does now, None for the last used one's; None where it is not loaded, or too busy to tell."""
        model = self.loaded if path is None else self.called(str(path))
        return None if model is None else await model.meters()

    async def room(self) -> Room:
        """Return what the next model may take, less what is set aside for the KV of earlier prompts."""
        kv, slots = self._kit.kv, self._residents.everywhere
        most, beside = await self._residents.room()
        granted = [slot.cache_bytes for slot in slots]
        kept = kv.shared(granted)
        return Room(
            most.less_ram(kv.reserved_bytes(())),
            beside.less_ram(kv.reserved_bytes(kept) - sum(granted) + sum(kept)),
            tuple(slot.name for slot in slots),
        )

    @property
    def why_no_disk(self) -> str:
        """Why no KV is kept on disk; empty where it is."""
        return self._kit.kv.why_no_disk if self.loaded is None else self.loaded.why_no_disk

    async def forget(self, conversation: str) -> Removed:
        """Forget what only this conversation left in the cache, of whatever model.

        Raises:
            EngineError, OSError, sqlite3.Error: not all of it could be deleted; it can be tried again.
            FolderInUseError: another process uses the folder.
        """
        removed = await self._forgotten_by_engines(conversation, 0.0, self._residents.here)

        def delete() -> Removed:
            kv_folder = self._kit.folders.kv
            with contextlib.nullcontext() if self._claim.is_held else kv_files.held(kv_folder):
                return kv_files.forget(kv_folder, conversation)

        return removed + await asyncio.to_thread(delete)

    async def clear(self, model: Path | None, before_s: float) -> Removed:
        """Forget what was cached before a time (seconds since 1970), of one model or of all. Raises EngineError, OSError."""
        slots = [slot for slot in self._residents.here if model in {None, slot.path}]
        removed = await self._forgotten_by_engines(None, before_s, slots)
        return removed + await asyncio.to_thread(kv_files.clear, self._kit.folders.kv, model, before_s)

    async def _forgotten_by_engines(self, conversation: str | None, before_s: float, slots: Iterable[Slot]) -> Removed:
        removed = Removed()
        for slot in slots:
            with self._residents.held(slot), contextlib.suppress(EngineCrashedError, ModelLoadError):
                removed += await slot.engine.forget(conversation, before_s)  # one that failed holds nothing any more
        return removed

    def _runnable(self, name: str) -> Record:
        return self.store.ensure_runnable(self.store.resolve(name))

    def _keep_alive_s(self, slot: Slot, asked: KeepAlive | None) -> float | None:
        if not self._several or slot.path == self._pinned:
            return None
        return self._kit.settings.keep_alive_s if asked is None else asked.seconds

    async def _free(self) -> Budget:
        return await asyncio.to_thread(lambda: budget(self._kit.settings, read_ram(), gpus_here()))

    async def __aenter__(self) -> Self:
        def claimed() -> KvBudget:
            return self._claim.claimed(kv_budget(self._kit.folders, self._kit.settings))

        self._kit.kv = await asyncio.to_thread(claimed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._residents.close()
        finally:
            self._claim.release()
            await self._kit.sandbox.close()
