"""One model in memory: its engine, its chat template, its grammars; what a door asks becomes the engine's request."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from pinyon.app.ask import Ask, Chat, Prompt, RawText, RawTokens
from pinyon.app.fit import told
from pinyon.app.wire import Memory
from pinyon.engine.client import EngineClient, EngineState
from pinyon.engine.config import EngineInfo
from pinyon.engine.errors import ContextOverflowError, EngineError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event
from pinyon.engine.grammar_check import GrammarChecker
from pinyon.engine.meters import Meters
from pinyon.engine.request import GenerateRequest, Reasoning, Speculate, Text, Tokens
from pinyon.engine.weights_digest import MEMORY_NAME, known_digest
from pinyon.models.chat_template import ChatTemplate, Message
from pinyon.models.machine.ram import read_ram
from pinyon.models.memory.fit import Fit
from pinyon.models.model_record import Record
from pinyon.models.output_parser import reasoning_tags
from pinyon.models.template_sandbox import TemplateSandbox

LARGE_CHAT_CHARS: Final = 1 << 20
METERS_S: Final = 2.0
"""How long the engine may take to tell its meters: it does so between steps."""


class LoadedModel:
    """A model whose engine this process runs, with what was chosen so that it `fit`s, and `cache_bytes` for KV of earlier prompts. It
    stays as long as it is `held`.

    `kv_folder` remembers the digests of known files.
    """

    def __init__(
        self,
        record: Record,
        engine: EngineClient,
        info: EngineInfo,
        sandbox: TemplateSandbox,
        grammars: GrammarChecker,
        *,
        fit: Fit,
        cache_bytes: int,
        held: Callable[[], AbstractContextManager[object]],
        kv_folder: Path,
        deterministic: bool,
        speculate: Speculate,
        why_no_disk: str = "",
    ) -> None:
        self.record = record
        self.fit = fit
        self.cache_bytes = cache_bytes
        self.held = held
        self._kv_folder = kv_folder
        self._digest = record.sha256 or ""
        self._why_no_disk = why_no_disk
        self.info = info
        self._engine = engine
        self._sandbox = sandbox
        self._grammars = grammars
        self._deterministic = deterministic
        self._speculate = speculate
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
    def kv_type(self) -> str:
        """As Model.kv_type."""
        return self.fit.plan.choice.kv.type.value

    @property
    def threads(self) -> int:
        return self.info.threads

    @property
    def memory(self) -> Memory:
        """What it was planned to take of memory, and what it took."""
        return Memory.of(self.fit, self.cache_bytes, self.compromises, self.info.buffers)

    @property
    def why_no_disk(self) -> str:
        """As Model.why_no_disk."""
        return self._why_no_disk or self._engine.why_no_disk

    @property
    def compromises(self) -> tuple[str, ...]:
        """As Model.compromises."""
        return told(self.fit)

    @property
    def state(self) -> EngineState:
        return self._engine.state

    async def meters(self) -> Meters | None:
        """Return what the engine holds and does now; None where it is too busy to tell."""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(METERS_S):
                meters = await self._engine.meters()
            if meters is not None:
                return msgspec.structs.replace(meters, available_bytes=read_ram().available_bytes)
        return None

    @property
    def digest(self) -> str:
        """As Model.digest."""
        self._digest = self._digest or known_digest(self.record.path, self._kv_folder / MEMORY_NAME)
        return self._digest

    async def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        """As Model.generate."""
        with self.held():
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
            speculate=ask.speculate or self._speculate,
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
