"""The conversation that is open: what is said in it, what waits, and the answer that is being written. Knows no widget.

One answer is written at a time; what is said meanwhile waits its turn. An answer goes on when another conversation is opened.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from pinyon.app import conversing
from pinyon.app.ask import SamplingChoice, new_id
from pinyon.app.backend import Backend
from pinyon.app.conversing import Choices, EditCost
from pinyon.app.errors import AppError, ServerError, UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Attached, Conversation, Message, Role
from pinyon.app.named_options import NamedOptions
from pinyon.engine.errors import EngineError
from pinyon.engine.events import Event, Failed, FailureKind, Progress
from pinyon.models.errors import ModelError, ModelNotFoundError

if TYPE_CHECKING:
    from pinyon.app.service import Model

EXPECTED: Final = (AppError, EngineError, ModelError, OSError, sqlite3.Error)
"""What can go wrong without a fault in the chat: it is told, and the chat goes on."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What the user says: text with the text of what is attached in it. `typed` is the part that is his own."""

    text: str
    attached: tuple[Attached, ...] = ()
    typed: str = ""

    @property
    def title(self) -> str:
        return conversing.title_of(self.typed) or conversing.title_of(self.text)


@dataclass(frozen=True, slots=True)
class _Job:
    """An answer to give. With a draft that becomes a message first; `parent` is the message before it, or the one to answer.

    `follows` puts the draft below whatever the conversation's last message is by then.
    """

    conversation: str
    parent: int | None = None
    draft: Draft | None = None
    follows: bool = False
    begun: Message | None = None


class Audience(Protocol):
    """Who is told what happens. Messages of conversations that are not open are not told."""

    async def opened(self, at: int | None) -> None:
        """Another conversation, or another branch of this one, is open; `at` is the message that was looked for."""

    async def said(self, message: Message) -> None: ...
    def began(self, message: Message) -> None: ...
    def heard(self, event: Event) -> None:
        """Take an event of the answer, also while its conversation is not open."""

    def ended(self, message: Message) -> None: ...
    def changed(self) -> None:
        """Look again at what waits, how far the model is loaded and which conversations there are."""

    def told(self, text: str, *, is_error: bool = False) -> None:
        """Show a line that came up."""

    def broke(self, error: Exception) -> None:
        """A fault in the chat itself: there is no going on."""

    def needs_model(self, reason: str) -> None:
        """No model is here that could answer; what waits goes on with `resume`."""


class Dialogue:
    """`model` None is the backend's choice. `loaded` is the fraction of the model that is loaded, None while none is loading;
    `shows_answer` says that the answer being written is on the open branch, `prefill` how far its prompt is, until it begins.
    """

    # `_asked` is the model and the id of the request that is answered, `_answer` the message that it becomes; `_tip` is the
    # last message that the audience has been told of.

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
        self.conversation: Conversation | None = None
        self.loaded: float | None = None
        self.shows_answer = False
        self.prefill: Progress | None = None
        self._backend = backend
        self._audience = audience
        self._context = context
        self._model: Model | None = None
        self._system = ""
        self._jobs: deque[_Job] = deque()
        self._working: asyncio.Task[None] | None = None
        self._answer: int | None = None
        self._asked: tuple[Model, str] | None = None
        self._writes_in: str | None = None
        self._is_stopping = False
        self._tip: int | None = None
        self._deleted: list[tuple[str, int | None]] = []

    @property
    def path(self) -> Sequence[Message]:
        """The messages of the open branch, from the first."""
        return () if self.conversation is None else self.history.tree(self.conversation.id).path()

    @property
    def model(self) -> "Model | None":
        return self._model

    @property
    def is_busy(self) -> bool:
        return self._working is not None and not self._working.done()

    @property
    def waiting(self) -> list[str]:
        """The titles of what waits for its turn, the next one first."""
        return [job.draft.title for job in self._jobs if job.draft is not None]

    async def open(self, conversation: str | None, message: int | None = None) -> None:
        """Open a conversation, at the branch with `message` if that is given; None begins a new one. Raises NoConversationError."""
        self.conversation = None if conversation is None else self.history.conversation(conversation)
        if conversation is not None and message is not None:
            self.history.use_leaf(conversation, self.history.tree(conversation).leaf_below(message))
        await self._reopened(message)
        self._audience.changed()

    def say(self, draft: Draft) -> None:
        """Have a message answered, after what waits already."""
        self._put(_Job(self._begun(draft).id, draft=draft, follows=True))

    def edit(self, message: Message, draft: Draft) -> None:
        """Say something else in the place of a message of the user's; what was said stays as a branch."""
        self._put(_Job(message.conversation, message.parent, draft))

    def answer_again(self, message: Message) -> None:
        """Answer a question again, or what was asked before an answer: beside the answers that are there."""
        parent = message.parent if message.role is Role.ASSISTANT else message.id
        self._put(_Job(message.conversation, parent))

    def go_on(self, answer: Message) -> None:
        """Write on where an answer was cut off, beside it."""
        self._put(_Job(answer.conversation, answer.parent, begun=answer))

    async def instruct(self, text: str) -> None:
        """Set what the model is told before everything else; empty for nothing of one's own."""
        self._system = text
        if self.conversation is not None:
            self._add_system(self.conversation.id)
            await self._reopened()

    async def turn(self, message: Message, steps: int) -> None:
        """Open another branch beside a message."""
        tree = self.history.tree(message.conversation)
        siblings = tree.siblings(message.id)
        place = siblings.index(message.id) + steps
        if 0 <= place < len(siblings):
            await self.open(message.conversation, siblings[place])

    async def delete(self, message: Message) -> None:
        """Leave out a message and what follows it; the first one takes the conversation with it."""
        if message.parent is None:
            await self.delete_conversation(message.conversation)
            return
        self._deleted.append((message.conversation, self.path[-1].id))
        self.history.use_leaf(message.conversation, message.parent)
        await self._reopened()

    async def delete_conversation(self, conversation: str) -> None:
        """Hide a conversation and forget its KV."""
        self._jobs = deque(job for job in self._jobs if job.conversation != conversation)
        if self._writes_in == conversation:
            await self.stop()
        self._deleted.append((conversation, None))
        self.history.delete(conversation)
        if self.conversation is not None and self.conversation.id == conversation:
            await self.open(None)
        self._audience.changed()
        try:
            await self._backend.forget(conversation)
        except EXPECTED as error:
            self._audience.told(f"not all that is cached of it could be forgotten: {error}", is_error=True)

    async def undo(self) -> bool:
        """Take the last deletion back; False where there is none."""
        if not self._deleted:
            return False
        conversation, leaf = self._deleted.pop()
        if leaf is None:
            self.history.undelete(conversation)
        else:
            self.history.use_leaf(conversation, leaf)
        await self.open(conversation)
        return True

    def take_back(self) -> str | None:
        """Return the text that would be said last, which then is not; None where nothing waits."""
        for job in reversed(self._jobs):
            if job.draft is not None:
                self._jobs.remove(job)
                self._audience.changed()
                return job.draft.text
        return None

    async def stop(self) -> None:
        """Stop the answer, or the loading before it. What is written stays; what waits has its turn."""
        if self._asked is not None:
            self._is_stopping = True
            model, request = self._asked
            await model.cancel(request)
        elif self._working is not None:
            self._working.cancel()

    async def finished(self) -> None:
        """Wait until nothing is loaded or answered any more."""
        if self._working is not None:
            await asyncio.wait((self._working,))

    async def close(self) -> None:
        """Stop everything. What was written is kept, so is what waits to be said, and nothing of it is told any more."""
        waiting, self._jobs = self._jobs, deque()
        self.shows_answer, self.conversation, self._tip = False, None, None
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        for job in waiting:
            self._write_down(job)

    async def cost_of(self, message: Message, text: str) -> EditCost | None:
        """Return what it costs to edit a message so; None while no model is loaded."""
        if self._model is None:
            return None
        conversation = self.history.conversation(message.conversation)
        return await conversing.what_edit_costs(
            self.history, self._model, conversation, message.parent, text, self.choices
        )

    @property
    def instructions(self) -> str:
        """What the model is told before everything else."""
        told = [message.text for message in self.path if message.role is Role.SYSTEM]
        return told[-1] if told else self._system

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

    async def load(self, model: str, on_progress: Callable[[float], None]) -> "Model":
        """Load another model at once; `on_progress` is told the loaded fraction. Where it fails, the one before stays wanted.

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
        self._model = await self._backend.load(model, self._context, on_progress)
        self.wanted = model
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

    def _put(self, job: _Job) -> None:
        self._jobs.append(job)
        self.resume()
        self._audience.changed()

    def _begun(self, draft: Draft) -> Conversation:
        if self.conversation is None:
            name = self.wanted if self._model is None else self._model.name
            self.conversation = self.history.start(title=draft.title, model=name or "")
            if self._system:
                self._add_system(self.conversation.id)
        return self.conversation

    def _add_system(self, conversation: str) -> None:
        self.history.add(conversation, self._last(conversation), Role.SYSTEM, self._system)

    def _last(self, conversation: str) -> int | None:
        path = self.history.tree(conversation).path()
        return path[-1].id if path else None

    async def _work(self) -> None:
        try:
            await self._ready()
            while self._jobs:
                await self._do(self._jobs.popleft())
        except ModelNotFoundError as error:
            self._audience.needs_model(str(error))
        except EXPECTED as error:
            self._audience.told(str(error), is_error=True)
        finally:
            self.loaded = None
            self._audience.changed()

    async def _ready(self) -> "Model":
        if self._model is None:
            self._on_progress(0.0)
            self._model = await self._backend.load(self.wanted, self._context, self._on_progress)
            self.loaded = None
            self._audience.changed()
        return self._model

    def _on_progress(self, fraction: float) -> None:
        self.loaded = fraction
        self._audience.changed()

    async def _do(self, job: _Job) -> None:
        parent = await self._say(job)
        model = await self._ready()
        conversation = self.history.conversation(job.conversation)
        self._writes_in = job.conversation
        choices = msgspec.structs.replace(self.choices, id=new_id())
        self._asked, self._is_stopping = (model, choices.id), False
        try:
            async with contextlib.aclosing(
                conversing.answer(self.history, model, conversation, parent, choices, job.begun)
            ) as updates:
                async for update in updates:
                    await self._take(update, parent)
        except ServerError as error:
            self._model = None
            await self._tell(error)
        except EXPECTED as error:
            await self._tell(error)
        finally:
            self._asked = self._writes_in = self.prefill = None
            self._end()

    async def _say(self, job: _Job) -> int:
        """Say what there is to say; return the message that is to be answered."""
        message = self._write_down(job)
        if message is None:
            assert job.parent is not None, "an answer has a message before it"
            return job.parent
        if job.follows and self._is_open(job.conversation) and self._tip == message.parent:
            self._tip = message.id
            await self._audience.said(message)
        elif self._is_open(job.conversation):
            await self._reopened()
        self._audience.changed()
        return message.id

    def _write_down(self, job: _Job) -> Message | None:
        """Keep what the user says; None where it is only to be answered again."""
        if job.draft is None:
            return None
        parent = self._last(job.conversation) if job.follows else job.parent
        return self.history.add(job.conversation, parent, Role.USER, job.draft.text, attached=job.draft.attached)

    async def _take(self, update: conversing.Update, parent: int) -> None:
        event = update.event
        if self._answer is None:
            await self._begin(update.message, parent)
        if self._is_stopping and isinstance(event, Progress):
            await self.stop()  # the first time may have been before the engine knew the request
        self.prefill = event if isinstance(event, Progress) else None
        self._audience.heard(event)
        if isinstance(event, Failed) and event.kind is FailureKind.ENGINE_CRASH:
            self._model = None

    async def _begin(self, answer: int, parent: int) -> None:
        self._answer = answer
        if self._tip == parent:
            self._tip, self.shows_answer = answer, True
            self._audience.began(self.path[-1])
        elif self._writes_in is not None and self._is_open(self._writes_in):
            await self._reopened()

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        if self.shows_answer:
            self.shows_answer = False
            self._audience.ended(next(message for message in self.path if message.id == answer))

    async def _tell(self, error: Exception) -> None:
        self._audience.told(str(error), is_error=True)
        await self._reopened()

    async def _reopened(self, at: int | None = None) -> None:
        path = self.path
        self._tip = path[-1].id if path else None
        self.shows_answer = self._answer is not None and any(message.id == self._answer for message in path)
        await self._audience.opened(at)

    def _is_open(self, conversation: str) -> bool:
        return self.conversation is not None and self.conversation.id == conversation
