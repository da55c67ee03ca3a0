"""The only door to engines. asyncio; holds one loaded model and the sandbox that renders its chat template."""

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from pinyon.app import kv_files
from pinyon.app.ask import Ask, Chat, Prompt, RawText, RawTokens
from pinyon.app.devices import chosen_cores
from pinyon.app.errors import ModelSlotError
from pinyon.app.kv_budget import KvBudget, KvClaim, kv_budget
from pinyon.app.settings import Folders, Settings
from pinyon.engine.client import EngineClient, EngineState
from pinyon.engine.config import EngineConfig, EngineInfo, Limits
from pinyon.engine.errors import (
    ContextOverflowError,
    EngineCrashedError,
    EngineError,
    EngineStartError,
    ModelLoadError,
    ModelQuarantinedError,
)
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Removed
from pinyon.engine.grammar_check import GrammarChecker
from pinyon.engine.meters import Meters
from pinyon.engine.request import GenerateRequest, Reasoning, Text, Tokens
from pinyon.engine.weights_digest import MEMORY_NAME, known_digest
from pinyon.models.catalog import slug
from pinyon.models.chat_template import ChatTemplate, Message
from pinyon.models.disk import private_folder
from pinyon.models.machine.ram import read_ram
from pinyon.models.model_record import Record, Source
from pinyon.models.output_parser import reasoning_tags
from pinyon.models.store import Store
from pinyon.models.template_sandbox import TemplateSandbox

LARGE_CHAT_CHARS: Final = 1 << 20
METERS_S: Final = 2.0
"""How long the engine may take to tell its meters: it does so between steps."""


class Model(Protocol):
    """A model that is ready to answer, in this process or in a server."""

    @property
    def name(self) -> str: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def why_no_disk(self) -> str:
        """Why no KV is kept on disk; empty where it is."""

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


class LoadedModel:
    """A model whose engine this process runs. `kv_folder` remembers the digests of known files."""

    def __init__(
        self,
        record: Record,
        engine: EngineClient,
        info: EngineInfo,
        sandbox: TemplateSandbox,
        grammars: GrammarChecker,
        *,
        kv_folder: Path,
        deterministic: bool,
        why_no_disk: str = "",
    ) -> None:
        self.record = record
        self._kv_folder = kv_folder
        self._digest = record.sha256 or ""
        self._why_no_disk = why_no_disk
        self.info = info
        self._engine = engine
        self._sandbox = sandbox
        self._grammars = grammars
        self._deterministic = deterministic
        self._template = ChatTemplate(info.chat_template, info.bos, info.eos)
        self._tags = reasoning_tags(info.chat_template)
        self._turn_end: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.record.name

    def is_called(self, name: str) -> bool:
        """Whether this is the model's name, or its file's path."""
        return name in {self.record.name, str(self.record.path)}

    @property
    def context_tokens(self) -> int:
        return self.info.context_tokens

    @property
    def threads(self) -> int:
        return self.info.threads

    @property
    def why_no_disk(self) -> str:
        """As Model.why_no_disk."""
        return self._why_no_disk or self._engine.why_no_disk

    @property
    def digest(self) -> str:
        """As Model.digest."""
        self._digest = self._digest or known_digest(self.record.path, self._kv_folder / MEMORY_NAME)
        return self._digest

    async def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        """As Model.generate."""
        try:
            request = await self.request(ask)
        except EngineError as error:
            yield error.as_event()
            return
        async with contextlib.aclosing(self._engine.generate(request)) as events:
            async for event in events:
                yield event

    async def cancel(self, ask_id: str) -> None:
        """As Model.cancel."""
        await self._engine.cancel(ask_id)

    async def estimate(self, ask: Ask) -> Estimate:
        """As Model.estimate."""
        # A grammar changes nothing about the prompt, and takes long to check.
        return await self._engine.estimate(await self.request(msgspec.structs.replace(ask, grammar=None)))

    async def count(self, text: str) -> int:
        """As Model.count."""
        whole, beginning = await asyncio.gather(self._engine.tokenize([Text(text)]), self._engine.tokenize(()))
        return len(whole) - len(beginning)

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens that a request with this prompt computes. Raises EngineError, TemplateError."""
        return await self._engine.tokenize(await self._pieces(prompt))

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        """Return the visible text of tokens. Raises EngineError."""
        return await self._engine.detokenize(ids)

    async def request(self, ask: Ask) -> GenerateRequest:
        """Return the engine's request for an ask: rendered, with the model's defaults filled in.

        Raises:
            TemplateError: the model has no template, or its template does not take these messages.
            EngineError: the prompt cannot fit, or the grammar is refused.
        """
        grammar = None if ask.grammar is None else await self._grammars.check(ask.grammar)
        prompt = await self._pieces(ask.prompt)
        is_chat = isinstance(ask.prompt, Chat)
        stop = ask.stop + (await self._typed_turn_end() if is_chat else ())
        reasoning = self._reasoning_after(prompt) if is_chat else None
        return GenerateRequest(
            ask.id,
            prompt,
            ask.sampling.over(self.info.sampling),
            ask.max_tokens,
            stop,
            ask.logprobs,
            n=ask.n,
            grammar=grammar,
            reasoning=reasoning,
            use_cache=ask.use_cache,
            private=ask.private,
            deterministic=self._deterministic if ask.deterministic is None else ask.deterministic,
            namespace=ask.namespace,
            conversation=ask.conversation,
            priority=ask.priority,
            client=ask.client,
            ttft_deadline_s=ask.ttft_deadline_s,
            ignore_eos=ask.ignore_eos,
        )

    async def _pieces(self, prompt: Prompt) -> tuple[Text | Tokens, ...]:
        match prompt:
            case RawText(text):
                return (Text(text),)
            case RawTokens(ids):
                return (Tokens(ids),)
            case Chat(messages, begun):
                pieces = await self._render(messages)
                return (*pieces, *self._begun_after(pieces, begun)) if begun else pieces

    def _begun_after(self, pieces: tuple[Text, ...], begun: str) -> tuple[Text, ...]:
        """Return how an answer begins; thoughts that the template has opened are closed before."""
        reasoning = self._reasoning_after(pieces)
        if reasoning is None or not reasoning.opened:
            return (Text(begun),)
        return Text(reasoning.ends[0], special=True), Text(begun)

    def _reasoning_after(self, prompt: tuple[Text | Tokens, ...]) -> Reasoning | None:
        if (tags := self._tags) is None:
            return None
        end = prompt[-1] if prompt else None
        opened = isinstance(end, Text) and end.special and tags.are_open_in(end.text)
        return Reasoning(tags.start, tags.ends, opened)

    async def _render(self, messages: tuple[Message, ...]) -> tuple[Text, ...]:
        if sum(len(message.content) for message in messages) > LARGE_CHAT_CHARS:
            await self._require_room(messages)
        pieces = await self._template.render(self._sandbox, messages, self.info.control_strings, self.info.tag_strings)
        return tuple(Text(piece.text, piece.special) for piece in pieces)

    async def _require_room(self, messages: tuple[Message, ...]) -> None:
        """Refuse what cannot fit by its number of tokens, before the template's limits would refuse it by its size."""
        tokens = len(await self._engine.tokenize([Text(message.content) for message in messages]))
        if tokens >= self.info.context_tokens:
            raise ContextOverflowError(tokens, self.info.context_tokens)

    async def _typed_turn_end(self) -> tuple[str, ...]:
        """Return the template's end-of-turn tag where the vocabulary has no token for it: such a model types it out."""
        if self._turn_end is None:
            tag = await self._template.turn_end(self._sandbox)
            self._turn_end = () if tag is None or tag in self.info.eog_strings else (tag,)
        return self._turn_end


@dataclass(eq=False)
class _Slot:
    """The place of one engine, from the moment when its load begins. `listeners` are told the loaded fraction."""

    config: EngineConfig
    engine: EngineClient
    record: Record
    loading: asyncio.Task[LoadedModel] | None = None
    listeners: set[Callable[[float], None]] = field(default_factory=set)

    def tell(self, fraction: float) -> None:
        for listener in self.listeners:
            listener(fraction)


def slot_taken(holder: str, wanted: Record, context_tokens: int | None = None) -> ModelSlotError:
    """Return the error of a model that is asked for while another one has the only place."""
    name = wanted.name if wanted.source is not Source.PATH else shlex.quote(str(wanted.path))
    context = "" if context_tokens is None else f" --context {context_tokens}"
    return ModelSlotError(
        f"{holder} is served, and one model at a time: `pinyon stop`, then `pinyon serve --model {name}{context}`"
    )


class Service:
    """Resolves names, checks files, runs engines. Use as an async context manager: leaving it ends every child."""

    def __init__(self, folders: Folders, settings: Settings) -> None:
        self.store = Store(folders.models)
        self._folders = folders
        self._settings = settings
        self._sandbox = TemplateSandbox()
        self._grammars = GrammarChecker()
        self._claim = KvClaim()
        self._kv = KvBudget(0)
        self._slot: _Slot | None = None
        self._loaded: LoadedModel | None = None
        self._quarantined: dict[bytes, ModelQuarantinedError] = {}

    @property
    def loaded(self) -> LoadedModel | None:
        """The model in memory."""
        return self._loaded

    @property
    def engine_state(self) -> EngineState:
        return EngineState.STOPPED if self._slot is None else self._slot.engine.state

    async def load(
        self, name: str, context_tokens: int | None = None, on_progress: Callable[[float], None] | None = None
    ) -> LoadedModel:
        """Load a model by name or path, or return it if it is loaded; `on_progress` is told the loaded fraction.

        Raises:
            ModelError: no such model, or its file cannot be used.
            ModelLoadError: the engine cannot load it.
            ModelSlotError: another model is loaded, or this one with another context.
        """
        if self._loaded is not None and self._loaded.is_called(name) and context_tokens is None:
            return self._loaded
        record = await asyncio.to_thread(lambda: self.store.ensure_runnable(self.store.resolve(name)))
        slot = self._slot = self._slot_for(record, self._config(record, context_tokens))
        if slot.loading is None:
            slot.loading = asyncio.create_task(self._load(slot))
            slot.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # callers may have left
        listener = on_progress or (lambda _fraction: None)
        slot.listeners.add(listener)
        try:
            return await asyncio.shield(slot.loading)
        finally:
            slot.listeners.discard(listener)

    async def meters(self) -> Meters | None:
        """Return what the engine holds and does now; None while nothing is loaded, or where it is too busy to tell."""
        if self._slot is not None:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(METERS_S):
                    meters = await self._slot.engine.meters()
                if meters is not None:
                    return msgspec.structs.replace(meters, available_bytes=read_ram().available_bytes)
        return None

    @property
    def why_no_disk(self) -> str:
        """Why no KV is kept on disk; empty where it is."""
        return self._kv.why_no_disk if self._loaded is None else self._loaded.why_no_disk

    async def forget(self, conversation: str) -> Removed:
        """Forget what only this conversation left in the cache, of whatever model.

        Raises:
            EngineError, OSError, sqlite3.Error: not all of it could be deleted; it can be tried again.
            FolderInUseError: another process uses the folder.
        """
        removed = await self._forgotten_by_engine(conversation, 0.0)

        def delete() -> Removed:
            with contextlib.nullcontext() if self._claim.is_held else kv_files.held(self._folders.kv):
                return kv_files.forget(self._folders.kv, conversation)

        return removed + await asyncio.to_thread(delete)

    async def clear(self, model: Path | None, before_s: float) -> Removed:
        """Forget what was cached before a time (seconds since 1970), of one model or of all. Raises EngineError, OSError."""
        removed = Removed()
        if self._slot is not None and model in {None, self._slot.record.path}:
            removed = await self._forgotten_by_engine(None, before_s)
        return removed + await asyncio.to_thread(kv_files.clear, self._folders.kv, model, before_s)

    async def _forgotten_by_engine(self, conversation: str | None, before_s: float) -> Removed:
        with contextlib.suppress(EngineCrashedError, ModelLoadError):  # then it holds nothing any more
            if self._slot is not None:
                return await self._slot.engine.forget(conversation, before_s)
        return Removed()

    async def _load(self, slot: _Slot) -> LoadedModel:
        """Load what a slot is for, whoever still waits for it; a load that fails gives the place back."""
        warm_up = asyncio.create_task(self._sandbox.start())
        try:
            info = await slot.engine.start(slot.tell)
        except EngineError as error:
            self._slot = None
            if isinstance(error, ModelQuarantinedError):
                self._quarantined[slot.config.model_path] = error
            await slot.engine.close()
            raise
        finally:
            with contextlib.suppress(Exception):  # a sandbox that cannot start is reported by the first render
                await warm_up
        self._loaded = LoadedModel(
            slot.record,
            slot.engine,
            info,
            self._sandbox,
            self._grammars,
            kv_folder=self._folders.kv,
            deterministic=self._settings.deterministic,
            why_no_disk=self._kv.why_no_disk,
        )
        return self._loaded

    def _slot_for(self, record: Record, config: EngineConfig) -> _Slot:
        """Return the slot if it holds the engine that is asked for, else a new one if it is free."""
        if config.model_path in self._quarantined:
            raise self._quarantined[config.model_path]
        if self._slot is None:
            return _Slot(config, EngineClient(config, self._log_of(record)), record)
        if self._slot.config == config:
            return self._slot
        raise slot_taken(self._slot.record.name, record, config.context_tokens)

    def _log_of(self, record: Record) -> Path:
        try:
            return private_folder(self._folders.logs) / f"{slug(record.name)}.log"
        except OSError as error:
            raise EngineStartError(f"the engine process cannot be started without a log: {error}") from error

    def _config(self, record: Record, context_tokens: int | None) -> EngineConfig:
        return EngineConfig(
            model_path=os.fsencode(record.path),
            threads=chosen_cores(self._settings).threads,
            context_tokens=self._settings.context if context_tokens is None else context_tokens,
            kv_ram_cap_bytes=self._kv.ram_cap_bytes,
            kv_folder=None if self._kv.folder is None else os.fsencode(self._kv.folder),
            kv_disk_cap_bytes=self._kv.disk_cap_bytes,
            answer_within_s=self._settings.engine_timeout_s,
            calibration_folder=os.fsencode(self._folders.calibration),
            limits=Limits(
                queue=self._settings.max_queued,
                client_queue=self._settings.max_queued_per_client,
                stall_s=self._settings.stall_ms / 1000,
                long_share=self._settings.long_request_share,
            ),
        )

    async def __aenter__(self) -> Self:
        self._kv = await asyncio.to_thread(lambda: self._claim.claimed(kv_budget(self._folders, self._settings)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if (slot := self._slot) is not None:
                await slot.engine.close()
                if slot.loading is not None:
                    await asyncio.wait((slot.loading,))
        finally:
            self._claim.release()
            await self._sandbox.close()
