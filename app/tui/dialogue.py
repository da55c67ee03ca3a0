"""The conversation that is open, at one of its branches: what is said in it, what is deleted, what the audience is told of it.

Knows no widget. One answer is written at a time; it goes on when another conversation is opened.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from pinyon.app import conversing
from pinyon.app.backend import Backend
from pinyon.app.conversing import Choices, EditCost
from pinyon.app.history.errors import NoConversationError
from pinyon.app.history.history import History
from pinyon.app.history.records import Conversation, Message, Role
from pinyon.app.tui.audience import Audience
from pinyon.app.tui.draft import Draft
from pinyon.app.tui.turns import EXPECTED, Turn, Turns


class Dialogue(Turns):
    """`shows_answer` says that the answer being written is on the open branch."""

    # `_tip` is the last message that the audience has been told of.

    def __init__(
        self,
        history: History,
        backend: Backend,
        audience: Audience,
        choices: Choices,
        model: str | None,
        context: int | None,
    ) -> None:
        super().__init__(history, backend, audience, choices, model, context)
        self.conversation: Conversation | None = None
        self.shows_answer = False
        self._system = ""
        self._tip: int | None = None
        self._deleted: list[tuple[str, int | None]] = []

    @property
    def path(self) -> Sequence[Message]:
        """The messages of the open branch, from the first; none where the conversation was deleted elsewhere."""
        try:
            return self._path
        except NoConversationError:
            return ()

    @property
    def instructions(self) -> str:
        """What the model is told before everything else."""
        told = [message.text for message in self.path if message.role is Role.SYSTEM]
        return told[-1] if told else self._system

    async def cost_of(self, message: Message, text: str) -> EditCost | None:
        """Return what it costs to edit a message so; None while no model is loaded."""
        if self._model is None:
            return None
        conversation = self.history.conversation(message.conversation)
        return await conversing.what_edit_costs(
            self.history, self._model, conversation, message.parent, text, self.choices
        )

    async def open(self, conversation: str | None, message: int | None = None) -> None:
        """Open a conversation, at the branch with `message` if that is given; None begins a new one. Raises NoConversationError."""
        self.conversation = None if conversation is None else self.history.conversation(conversation)
        if conversation is not None and message is not None:
            self.history.use_leaf(conversation, self.history.tree(conversation).leaf_below(message))
        await self._reopened(message)
        self._audience.changed()

    def say(self, draft: Draft) -> None:
        """Have a message answered, after what waits already."""
        self._put(Turn(self._begun(draft).id, draft=draft, follows=True))

    def take_back(self) -> Draft | None:
        """Return what would be said last here, which then is not; None where nothing waits. Edits are left alone."""
        for turn in reversed(self._turns):
            if turn.draft is not None and turn.follows and self._is_open(turn.conversation):
                self._turns.remove(turn)
                self._audience.changed()
                return turn.draft
        return None

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
        await self.stop_in(conversation)
        self._deleted.append((conversation, None))
        self.history.delete(conversation)
        if self.conversation is not None and self.conversation.id == conversation:
            await self.open(None)
        self._audience.changed()
        try:
            await self._backend.forget(conversation)
        except EXPECTED as error:
            self._audience.failed(error, f"not all that is cached of it could be forgotten: {error}")

    async def undo(self) -> str:
        """Take the last deletion back and return what is there again; empty where there is no deletion."""
        if not self._deleted:
            return ""
        conversation, leaf = self._deleted.pop()
        if leaf is None:
            self.history.undelete(conversation)
        else:
            self.history.use_leaf(conversation, leaf)
        await self.open(conversation)
        title = self.history.conversation(conversation).title
        return f"the conversation {title!r}" if leaf is None else "what was left out"

    async def close(self) -> None:
        """Stop everything. What was written is kept, so is what waits to be said, and nothing of it is told any more."""
        self.shows_answer, self.conversation, self._tip = False, None, None
        await super().close()

    @property
    def _path(self) -> Sequence[Message]:
        """As `path`; raises NoConversationError."""
        return () if self.conversation is None else self.history.tree(self.conversation.id).path()

    def _begun(self, draft: Draft) -> Conversation:
        if self.conversation is None:
            self.conversation = self._started(draft)
        return self.conversation

    def _started(self, draft: Draft) -> Conversation:
        name = self.wanted if self._model is None else self._model.name
        started = self.history.start(title=draft.title, model=name or "")
        if self._system:
            self._add_system(started.id)
        return started

    def _begun_anew(self, gone: str, draft: Draft) -> str:
        started = self._started(draft)
        self._turns = deque(
            replace(turn, conversation=started.id, follows=True) if turn.draft and turn.conversation == gone else turn
            for turn in self._turns
        )
        if self._is_open(gone):
            self.conversation = started
            self._audience.told("the conversation was deleted elsewhere: what you say begins a new one")
        return started.id

    async def _gone(self, conversation: str) -> None:
        if self._is_open(conversation):
            self._audience.told("the conversation was deleted elsewhere: this is a new one")
            await self.open(None)

    def _add_system(self, conversation: str) -> None:
        self.history.add(conversation, self._last(conversation), Role.SYSTEM, self._system)

    async def _said(self, message: Message, *, follows: bool) -> None:
        if follows and self._is_open(message.conversation) and self._tip == message.parent:
            self._tip = message.id
            await self._audience.said(message)
        elif self._is_open(message.conversation):
            await self._reopened()

    async def _began(self, conversation: str, answer: int, parent: int) -> None:
        if self._tip == parent:
            self._tip, self.shows_answer = answer, True
            self._audience.began(self._path[-1])
        elif self._is_open(conversation):
            await self._reopened()

    async def _failed(self, error: Exception) -> None:
        self._audience.failed(error)
        await self._reopened()

    def _ended(self, answer: int | None) -> None:
        if self.shows_answer:
            self.shows_answer = False
            self._audience.ended(next(message for message in self._path if message.id == answer))

    async def _reopened(self, at: int | None = None) -> None:
        path = self.path
        self._tip = path[-1].id if path else None
        self.shows_answer = self._answer is not None and any(message.id == self._answer for message in path)
        await self._audience.opened(at)

    def _is_open(self, conversation: str) -> bool:
        return self.conversation is not None and self.conversation.id == conversation
