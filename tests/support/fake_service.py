"""A server whose model runs a real engine on the fakes: everything from HTTP to the engine's text stream, with fixed tokens.

It stands where Service and LoadedModel stand. The model of bytes is greedy where an ask does not say otherwise.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from pathlib import Path

from fakes import END_OF_TURN, Next, make_engine

from pinyon.app.api.app import make_app
from pinyon.app.api.door import Door
from pinyon.app.api.metrics import Metrics
from pinyon.app.ask import Ask, Chat, Prompt, RawText, RawTokens
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.settings import Settings
from pinyon.app.wire import Memory
from pinyon.engine.client import EngineState
from pinyon.engine.config import Buffer, Limits
from pinyon.engine.engine import Emitted
from pinyon.engine.errors import EngineCrashedError, EngineError
from pinyon.engine.events import Event, Failed, Finished
from pinyon.engine.meters import Meters
from pinyon.engine.request import GenerateRequest, Reasoning, SamplingParams, Text, Tokens
from pinyon.models.memory.fit import Fit
from pinyon.models.memory.kv import KvChoice, KvType
from pinyon.models.memory.plan import Choice, DeviceNeed, MemoryPlan
from pinyon.models.model_record import FileIdentity, Record, Source, new_record
from pinyon.models.store import Listing

NONCE = "00" * 32
FIT = Fit(
    MemoryPlan(Choice(KvChoice(4096, 8, 512)), (DeviceNeed("RAM", 100, 90, 30, 20, 4, 6),), is_exact=True),
    4096,
)
BUFFERS = (
    Buffer("model", "CPU_Mapped", 90),
    Buffer("KV", "CPU", 30),
    Buffer("RS", "CPU", 1),
    Buffer("output", "CPU", 4),
)
GREEDY = SamplingParams(temperature=0)
THINK = Reasoning("<think>", ("</think>",))
HIDDEN_PATH = Path("/secret/place/fake.gguf")
"""Where the fake model's file lies; no answer may tell it."""


def says(answer: str | bytes | Sequence[int]) -> Next:
    """These bytes or token ids to every prompt, then the end of the turn."""
    tokens = list(answer.encode() if isinstance(answer, str) else answer)

    def next_token(_request_id: str, _tokens: Sequence[int], generated: int) -> int:
        return tokens[generated] if generated < len(tokens) else END_OF_TURN

    return next_token


def raises(after: int, error: Exception) -> Next:
    """That many letters, then a failure of the engine."""

    def next_token(_request_id: str, _tokens: Sequence[int], generated: int) -> int:
        if generated == after:
            raise error
        return ord("a")

    return next_token


def record_of(name: str, path: Path = HIDDEN_PATH) -> Record:
    return new_record(name, path, Source.ADDED, FileIdentity(0, 0, 0, 0))


class FakeModel:
    """As LoadedModel. While `unpaused` is not set, steps are the test's; `tokenising` set back holds prompts before they are queued."""

    threads = 1
    kv_type = "f16"
    why_no_disk = ""
    compromises = ()
    state = EngineState.READY

    def __init__(
        self,
        next_token: Next,
        *,
        name: str = "fake",
        reasoning: Reasoning | None = None,
        cells: int = 4096,
        sequence_ids: int = 8,
        failing: Collection[int] = (),
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.record = record_of(name)
        self.context_tokens = cells
        self.engine, self.runner, self.scheduler, self.kv = make_engine(
            next_token, cells=cells, sequence_ids=sequence_ids, failing=failing, limits=limits
        )
        self.unpaused, self.tokenised = asyncio.Event(), asyncio.Event()
        self.unpaused.set()
        self.tokenised.set()
        self.asked: list[Ask] = []
        self._reasoning = reasoning
        self._streams: dict[str, asyncio.Queue[Event]] = {}
        self._stepping: asyncio.Task[None] | None = None

    @property
    def memory(self) -> Memory:
        return Memory.of(FIT, 1000, self.compromises, BUFFERS)

    def is_called(self, name):
        return name in {self.name, str(self.record.path)}

    async def meters(self) -> Meters | None:
        return self.engine.meters()

    async def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        self.asked.append(ask)
        await self.tokenised.wait()
        try:
            prepared = self.engine.prepare(self._request(ask))
        except EngineError as error:
            yield error.as_event()
            return
        stream = self._streams[ask.id] = asyncio.Queue()
        self._deliver(self.engine.submit(prepared))
        self._step_on()
        ended = False
        try:
            while not ended:
                event = await stream.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            if self._streams.pop(ask.id, None) is not None:
                self.engine.cancel(ask.id)

    async def cancel(self, ask_id: str) -> None:
        self._deliver(self.engine.cancel(ask_id))

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self.engine._vocab.encode(_pieces(prompt)))

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        return self.engine._vocab.decode(ids)

    def step(self) -> None:
        """Compute one batch."""
        self._deliver(self.engine.step())

    def die(self, kind: type[EngineCrashedError] = EngineCrashedError) -> None:
        """End every answer as the death of the worker does."""
        error = kind(f"the engine process died: signal SIGKILL; its log ends with: {HIDDEN_PATH}")
        for request_id in list(self._streams):
            self.engine.cancel(request_id)
            self._deliver([(request_id, error.as_event())])

    async def close(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepping

    def _request(self, ask: Ask) -> GenerateRequest:
        is_chat = isinstance(ask.prompt, Chat)
        return GenerateRequest(
            ask.id,
            _pieces(ask.prompt),
            ask.sampling.over(GREEDY),
            ask.max_tokens,
            ask.stop,
            ask.logprobs,
            n=ask.n,
            grammar=ask.grammar,
            reasoning=self._reasoning if is_chat else None,
            use_cache=ask.use_cache,
            private=ask.private,
            namespace=ask.namespace,
            conversation=ask.conversation,
            priority=ask.priority,
            client=ask.client,
            ttft_deadline_s=ask.ttft_deadline_s,
            ignore_eos=ask.ignore_eos,
        )

    def _deliver(self, emitted: Sequence[Emitted]) -> None:
        for request_id, event in emitted:
            if (stream := self._streams.get(request_id)) is not None:
                stream.put_nowait(event)
                if isinstance(event, Finished | Failed):
                    del self._streams[request_id]

    def _step_on(self) -> None:
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_while_busy())

    async def _step_while_busy(self) -> None:
        while self.engine.busy:
            await self.unpaused.wait()
            if self.engine.busy:
                self.step()
            await asyncio.sleep(0)


def _pieces(prompt: Prompt) -> tuple[Text | Tokens, ...]:
    match prompt:
        case RawText(text):
            return (Text(text),)
        case RawTokens(ids):
            return (Tokens(ids),)
        case Chat(messages, begun):
            return (Text("".join(f"{message.role}: {message.content}\n" for message in messages) + begun),)


class FakeStore:
    def __init__(self, *records: Record) -> None:
        self.records = records

    def knows(self, name: str) -> bool:
        return any(record.name == name for record in self.records)

    def list(self) -> Listing:
        return Listing(self.records, ())


class FakeService:
    """As Service, with a model in memory; `load_error` is what loading raises."""

    def __init__(self, model: FakeModel) -> None:
        self.store = FakeStore(model.record)
        self.engine_state = EngineState.READY
        self.loaded: FakeModel | None = model
        self.load_error: Exception | None = None
        self.loading: tuple[object, ...] = ()
        self.loads: list[str] = []
        self.kept_alive: list[KeepAlive | None] = []
        self._model = model

    @property
    def models(self) -> tuple[FakeModel, ...]:
        return () if self.loaded is None else (self.loaded,)

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
    ) -> AsyncIterator[FakeModel]:
        self.kept_alive.append(keep_alive)
        if self.loaded is None or not self.loaded.is_called(name):
            self.loads.append(name)
            if self.load_error is not None:
                raise self.load_error
            self.loaded = self._model
        yield self.loaded


class FakeServer:
    """The application over a fake model."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.service = FakeService(model)
        self.metrics = Metrics()
        self.door = Door(self.service, None, Settings(model="fake"), self.metrics)
        self.app = make_app(self.door, self.metrics.registry, NONCE, with_docs=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, anywhere."""
        self.model.scheduler.check()
        is_open = self.model.engine.busy or self.model.kv.held_cells or self.door.running or self.door.waiting
        return not is_open

    async def becomes_idle(self) -> None:
        async with asyncio.timeout(5):
            while not self.is_idle:
                await asyncio.sleep(0)
