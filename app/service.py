"""The only door to engines. asyncio; holds one loaded model and the sandbox that renders its chat template."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Final, Self

from pinyon.app.ask import Ask, RawText
from pinyon.app.errors import ModelSlotError
from pinyon.app.settings import Folders, Settings
from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig, EngineInfo
from pinyon.engine.errors import ContextOverflowError, EngineError, ModelQuarantinedError
from pinyon.engine.events import Event
from pinyon.engine.request import GenerateRequest, Text
from pinyon.models.catalog import slug
from pinyon.models.chat_template import ChatTemplate, Message
from pinyon.models.devices import usable_threads
from pinyon.models.model_record import Record
from pinyon.models.store import Store
from pinyon.models.template_sandbox import TemplateSandbox

LONG_TEXT_CHARS: Final = 1 << 20


class LoadedModel:
    """A model that is ready to answer."""

    def __init__(self, record: Record, engine: EngineClient, info: EngineInfo, sandbox: TemplateSandbox) -> None:
        self.record = record
        self.info = info
        self._engine = engine
        self._sandbox = sandbox
        self._template = ChatTemplate(info.chat_template, info.bos, info.eos)
        self._turn_end: tuple[str, ...] | None = None

    async def request(self, ask: Ask) -> GenerateRequest:
        """Return the engine's request for an ask: rendered, with the model's defaults filled in.

        Raises:
            TemplateError: the model has no template, or its template does not take these messages.
        """
        stop = ask.stop
        if isinstance(ask.prompt, RawText):
            prompt: tuple[Text, ...] = (Text(ask.prompt.text),)
        else:
            prompt = await self._render(ask.prompt)
            stop += await self._typed_turn_end()
        sampling = ask.sampling.over(self.info.sampling)
        return GenerateRequest(secrets.token_hex(8), prompt, sampling, ask.max_tokens, stop)

    async def _render(self, messages: tuple[Message, ...]) -> tuple[Text, ...]:
        if sum(len(message.content) for message in messages) > LONG_TEXT_CHARS:
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

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """Yield the events of a request; the last one is Finished or Failed."""
        return self._engine.generate(request)

    async def cancel(self, request_id: str) -> None:
        """End a request early; its stream gets its last event."""
        await self._engine.cancel(request_id)


class Service:
    """Resolves names, checks files, runs engines. Use as an async context manager: leaving it ends every child."""

    def __init__(self, folders: Folders, settings: Settings) -> None:
        self.store = Store(folders.models)
        self._folders = folders
        self._settings = settings
        self._sandbox = TemplateSandbox()
        self._slot: tuple[Record, EngineConfig, EngineClient] | None = None
        self._quarantined: dict[bytes, ModelQuarantinedError] = {}

    async def load(
        self, name: str, context_tokens: int | None = None, on_progress: Callable[[float], None] | None = None
    ) -> LoadedModel:
        """Load a model by name or path; `on_progress` is told the loaded fraction.

        Raises:
            ModelError: no such model, or its file cannot be used.
            ModelLoadError: the engine cannot load it.
            ModelSlotError: another model is loaded, or this one with another context.
        """
        record = await asyncio.to_thread(lambda: self.store.ensure_runnable(self.store.resolve(name)))
        engine = self._engine_for(record, self._config(record, context_tokens))
        warm_up = asyncio.create_task(self._sandbox.start())
        try:
            info = await engine.start(on_progress)
        except EngineError as error:
            self._slot = None
            if isinstance(error, ModelQuarantinedError):
                self._quarantined[os.fsencode(record.path)] = error
            await engine.close()
            raise
        finally:
            with contextlib.suppress(Exception):  # a sandbox that cannot start is reported by the first render
                await warm_up
        return LoadedModel(record, engine, info, self._sandbox)

    def _engine_for(self, record: Record, config: EngineConfig) -> EngineClient:
        """Return the loaded engine if it is the one that is asked for, else a new one in the free slot."""
        if config.model_path in self._quarantined:
            raise self._quarantined[config.model_path]
        if self._slot is None:
            engine = EngineClient(config, self._folders.logs / f"{slug(record.name)}.log")
            self._slot = (record, config, engine)
            return engine
        loaded, loaded_config, engine = self._slot
        if loaded_config.model_path != config.model_path:
            raise ModelSlotError(f"{loaded.name} is loaded; {record.name} needs an engine of its own: start another")
        if loaded_config != config:
            was, asked = loaded_config.context_tokens, config.context_tokens
            raise ModelSlotError(f"{loaded.name} is loaded with --context {was}, asked for is {asked}: start another")
        return engine

    def _config(self, record: Record, context_tokens: int | None) -> EngineConfig:
        return EngineConfig(
            model_path=os.fsencode(record.path),
            threads=self._settings.threads or usable_threads(),
            context_tokens=self._settings.context if context_tokens is None else context_tokens,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._slot is not None:
                await self._slot[2].close()
        finally:
            await self._sandbox.close()
