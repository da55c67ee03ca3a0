"""What is to be said and answered, one after another, and the model that answers: loaded when needed, stopped, changed.

Knows no widget, and not which conversation is open.
"""

import asyncio
import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pinyon.app import conversing
from pinyon.app.ask import SamplingChoice
from pinyon.app.backend import Backend
from pinyon.app.conversing import Choices
from pinyon.app.errors import AppError, ServerError, UsageError
from pinyon.app.history.errors import NoConversationError
from pinyon.app.history.history import History
from pinyon.app.history.records import Message, Role
from pinyon.app.named_options import NamedOptions
from pinyon.app.tui.audience import Audience
from pinyon.app.tui.draft import Draft
from pinyon.engine.errors import EngineError
from pinyon.engine.events import Failed, FailureKind, Progress
from pinyon.models.errors import ModelError, ModelNotFoundError

if TYPE_CHECKING:
    from pinyon.app.service import Model
    from pinyon.models.memory.kv import KvType

EXPECTED: Final = (AppError, EngineError, ModelError, OSError, sqlite3.Error)
"""What can go wrong without a fault in the chat: it is told, and the chat goes on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer to give. With a draft that becomes a message first; `parent` is the message before it, or the one to answer.

    `follows` puts the draft below whatever the conversation's last message is by then.
    """

    conversation: str
    parent: int | None = None
    draft: Draft | None = None
    follows: bool = False
    begun: Message | None = None


class Turns(ABC):
    """`wanted` None is the backend's choice of a model. `loaded` is the fraction of it that is loaded, None while none is loading;
    `prefill` is how far the prompt of an answer is, until it begins.
    """

    # `_asked` is the model and the id of the request that is answered, `_writes_in` its conversation, `_answer` the message that
    # it becomes.

    def __init__(
        self,
        history: History,
        backend: Backend,
        audience: Audience,
        choices: Choices,
        model: str | None,
        context: int | None,
    ) -> None:
        self.history = history
        self.choices = choices
        self.wanted = model
        self.loaded: float | None = None
        self.prefill: Progress | None = None
        self._backend = backend
        self._audience = audience
        self._context = context
        self._kv_type: KvType | None = None
        self._model: Model | None = None
        self._turns: deque[Turn] = deque()
        self._working: asyncio.Task[None] | None = None
        self._asked: tuple[Model, str] | None = None
        self._writes_in: str | None = None
        self._answer: int | None = None
        self._is_stopping = False

    @abstractmethod
    async def _said(self, message: Message, *, follows: bool) -> None:
        """A message of the user's is in the history now."""

    @abstractmethod
    async def _began(self, conversation: str, answer: int, parent: int) -> None:
        """An answer is being written, below its parent."""

    @abstractmethod
    async def _failed(self, error: Exception) -> None:
        """There is no answer, or no more of it."""

    @abstractmethod
    def _begun_anew(self, gone: str, draft: Draft) -> str:
        """Return a new conversation for what is said in one that was deleted elsewhere."""

    @abstractmethod
    async def _gone(self, conversation: str) -> None:
        """A conversation in which something was to be answered was deleted meanwhile."""

    @abstractmethod
    def _ended(self, answer: int | None) -> None:
        """Nothing more is written; None where no answer began."""

    @property
    def model(self) -> "Model | None":
        return self._model

    @property
    def context(self) -> int | None:
        """How many tokens of context are asked for; None leaves it to the model and the machine."""
        return self._context

    @property
    def kv_type(self) -> "KvType | None":
        """The type of KV that is asked for; None leaves it to the settings, the model and the machine."""
        return self._kv_type

    @property
    def is_busy(self) -> bool:
        return self._working is not None and not self._working.done()

    @property
    def waiting(self) -> list[str]:
        """The titles of what waits for its turn, the next one first."""
        return [turn.draft.title for turn in self._turns if turn.draft is not None]

    def edit(self, message: Message, draft: Draft) -> None:
        """Say something else in the place of a message of the user's; what was said stays as a branch."""
        self._put(Turn(message.conversation, message.parent, draft))

    def answer_again(self, message: Message) -> None:
        """Answer a question again, or what was asked before an answer: beside the answers that are there."""
        parent = message.parent if message.role is Role.ASSISTANT else message.id
        self._put(Turn(message.conversation, parent))

    def go_on(self, answer: Message) -> None:
        """Write on where an answer was cut off, beside it."""
        self._put(Turn(answer.conversation, answer.parent, begun=answer))

    async def stop(self) -> None:
        """Stop the answer, or the loading before it. What is written stays; what waits has its turn."""
        if self._asked is not None:
            self._is_stopping = True
            model, request = self._asked
            await model.cancel(request)
        elif self._working is not None:
            self._working.cancel()

    async def stop_in(self, conversation: str) -> None:
        """Stop what is written in a conversation, and drop what waits there."""
        self._turns = deque(turn for turn in self._turns if turn.conversation != conversation)
        if self._writes_in == conversation:
            await self.stop()

    async def finished(self) -> None:
        """Wait until nothing is loaded or answered any more."""
        if self._working is not None:
            await asyncio.wait((self._working,))

    async def close(self) -> None:
        """Stop everything. What was written is kept, and so is what waits to be said."""
        waiting, self._turns = self._turns, deque()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        for turn in waiting:
            self._write_down(turn)

    def choose(self, options: NamedOptions | None) -> None:
        """Draw tokens so from the next answer on, all else as before; None gives every choice back to the model."""
        if options is None:
            self.choices = msgspec.structs.replace(self.choices, sampling=SamplingChoice(), max_tokens=None)
            return
        chosen = {name: value for name, value in msgspec.structs.asdict(options.sampling).items() if value is not None}
        self.choices = msgspec.structs.replace(
            self.choices,
            sampling=msgspec.structs.replace(self.choices.sampling, **chosen),
            max_tokens=self.choices.max_tokens if options.max_tokens is None else options.max_tokens,
        )

    def use(self, model: str) -> None:
        """Answer with another model from the next answer on."""
        self.wanted = model
        self._model = None
        self.resume()

    async def load(
        self, model: str, context: int | None, kv_type: "KvType | None", on_progress: Callable[[float], None]
    ) -> "Model":
        """Load another model at once, with so many tokens of context and this type of KV, None for what suits it;
        `on_progress` is told the loaded fraction. Where it fails, the one before stays wanted.

        Raises:
            UsageError: an answer is being written.
            AppError, ModelError, EngineError: it cannot be loaded.
        """
        if self._asked is not None:
            raise UsageError("an answer is being written: stop it, or wait for its end")
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        self._model = None
        self._model = await self._backend.load(model, context, on_progress, kv_type=kv_type)
        self.wanted, self._context, self._kv_type = model, context, kv_type
        self._tell_compromises(self._model)
        self._audience.changed()
        return self._model

    def resume(self) -> None:
        """Load the model and go on with what waits."""
        if not self.is_busy:
            self._working = asyncio.create_task(self._work())
            self._working.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._audience.broke(error)

    def _put(self, turn: Turn) -> None:
        self._turns.append(turn)
        self.resume()
        self._audience.changed()

    async def _work(self) -> None:
        try:
            await self._ready()
            while self._turns:
                turn = self._turns.popleft()
                try:
                    await self._do(turn)
                except NoConversationError:
                    await self._gone(turn.conversation)
        except ModelNotFoundError as error:
            self._audience.needs_model(error)
        except EXPECTED as error:
            self._audience.failed(error)
        finally:
            self.loaded = None
            self._audience.changed()

    async def _ready(self) -> "Model":
        if self._model is None:
            self._on_progress(0.0)
            self._model = await self._backend.load(self.wanted, self._context, self._on_progress, kv_type=self._kv_type)
            self.loaded = None
            self._tell_compromises(self._model)
            self._audience.changed()
        return self._model

    def _tell_compromises(self, model: "Model") -> None:
        for compromise in model.compromises:
            self._audience.told(f"so that {model.name} fits into memory: {compromise}")

    def _on_progress(self, fraction: float) -> None:
        self.loaded = fraction
        self._audience.changed()

    async def _do(self, turn: Turn) -> None:
        conversation, parent = await self._say(turn)
        model = await self._ready()
        path = self.history.tree(conversation).path(parent)
        chat = conversing.as_chat(path, "" if turn.begun is None else turn.begun.text)
        ask = self.choices.ask(chat, conversation)
        self._writes_in = conversation
        self._asked, self._is_stopping = (model, ask.id), False
        try:
            async with contextlib.aclosing(
                conversing.written(self.history, model, conversation, parent, ask, turn.begun)
            ) as updates:
                async for update in updates:
                    await self._take(update, conversation, parent)
        except ServerError as error:
            self._model = None
            await self._failed(error)
        except EXPECTED as error:
            await self._failed(error)
        finally:
            self._asked = self._writes_in = self.prefill = None
            answer, self._answer = self._answer, None
            self._ended(answer)

    async def _say(self, turn: Turn) -> tuple[str, int]:
        """Say what there is to say; return the conversation, and its message that is to be answered."""
        message = self._write_down(turn)
        if message is None:
            assert turn.parent is not None, "an answer has a message before it"
            return turn.conversation, turn.parent
        await self._said(message, follows=turn.follows)
        self._audience.changed()
        return message.conversation, message.id

    def _write_down(self, turn: Turn) -> Message | None:
        """Keep what the user says; None where it is only to be answered again."""
        if turn.draft is None:
            return None
        try:
            last = self._last(turn.conversation)
            conversation, parent = turn.conversation, last if turn.follows else turn.parent
        except NoConversationError:
            conversation = self._begun_anew(turn.conversation, turn.draft)
            parent = self._last(conversation)
        return self.history.add(conversation, parent, Role.USER, turn.draft.text, attached=turn.draft.attached)

    def _last(self, conversation: str) -> int | None:
        path = self.history.tree(conversation).path()
        return path[-1].id if path else None

    async def _take(self, update: conversing.Update, conversation: str, parent: int) -> None:
        event = update.event
        if self._answer is None:
            self._answer = update.message
            await self._began(conversation, update.message, parent)
        if self._is_stopping and isinstance(event, Progress):
            await self.stop()  # the first time may have been before the engine knew the request
        self.prefill = event if isinstance(event, Progress) else None
        self._audience.heard(event)
        if isinstance(event, Failed) and event.kind is FailureKind.ENGINE_CRASH:
            self._model = None
        if isinstance(event, Failed) and event.kind is FailureKind.CONTEXT_OVERFLOW:
            self._audience.told("what does not fit stays in the conversation: leave it out, or begin a new one")
