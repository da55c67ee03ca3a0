"""The history: conversations as trees of messages, kept in one file that several processes may write.

What this process works on is held in memory and written behind by a `Saver`, so nobody waits for the disk, and a disk that is full
or a file that another program holds costs nobody an answer. Reads put what is held over what the file says.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from pinyon.app.ask import new_id as new_conversation_id
from pinyon.app.history import rows
from pinyon.app.history.database import memory_database
from pinyon.app.history.errors import HistoryFileError, HistoryLockedError, NoConversationError, NoMessageError
from pinyon.app.history.file import HistoryFile
from pinyon.app.history.held import Held, Stream
from pinyon.app.history.ids import new_id
from pinyon.app.history.records import Answered, Attached, Conversation, Found, Message, Role, State
from pinyon.app.history.rows import Change, Search
from pinyon.app.history.saving import Saver
from pinyon.app.history.tree import Tree
from pinyon.models.disk import printable

_HELD: Final = 8
"""How many conversations stay in memory that are on disk."""


class History:
    """Everything may be called from any thread, and returns at once: no call waits for a write, but `flush` and `close`.

    A read waits at most a quarter of a second for another program. It sees what was written through this object, also before
    that is on disk, and what other processes have saved. `path` None keeps everything in memory. `on_trouble` is told, from any
    thread, what the user should know: that nothing is saved, and why; that it is saved again; that a damaged file was set aside.
    """

    def __init__(
        self,
        path: Path | None,
        on_trouble: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._held: dict[str, Held] = {}
        """The one used last is the last."""
        self._writing: dict[int, Held] = {}
        self._purged: set[str] = set()
        self._listed: list[Conversation] = []
        self.list_version = 0
        """Another number each time that this process has changed something that a list of conversations shows."""
        self._file = HistoryFile(path, on_trouble)
        self._saver = Saver(self._save, on_trouble)
        try:
            self._file.open_if_there()
        except HistoryFileError as error:
            self._saver.fail(str(error))

    @classmethod
    def in_memory(cls) -> Self:
        """Return a history of which nothing is kept."""
        return cls(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def why_not_saved(self) -> str:
        """Why what was written is not on disk; empty while it is, or is about to be, or is not to be."""
        return self._file.why_read_only or self._saver.why_not_saved

    # -- writing

    def start(self, *, title: str, model: str) -> Conversation:
        """Begin a conversation."""
        now = self._clock()
        record = Conversation(new_conversation_id(), _storable(title), now, now, _storable(model))
        with self._lock:
            self._hold(Held(record, is_new=True))
            self.list_version += 1
            self._want()
        return record

    def add(
        self,
        conversation: str,
        parent: int | None,
        role: Role,
        text: str,
        *,
        reasoning: str = "",
        state: State = State.COMPLETE,
        attached: Iterable[Attached] = (),
    ) -> Message:
        """Add a message below its parent; it is the one used last.

        Raises:
            NoConversationError, NoMessageError: the conversation or the parent is not there.
        """
        with self._lock:
            held = self._find(conversation)
            if parent is not None and parent not in held.messages:  # another process may have added it
                Tree(self._find(conversation, is_fresh=True).messages.values()).message(parent)
            number = new_id(now := self._clock(), held.last_used)
            text, reasoning = _storable(text), _storable(reasoning)
            named = tuple(replace(each, name=_storable(each.name)) for each in attached)
            message = Message(number, conversation, parent, role, text, reasoning, state, now, None, named, used=number)
            held.put(message)
            self._touched(held, now)
            if state is State.STREAMING:
                self._write_to(held, number)
            self._want()
            return message

    def stream(self, message: int, text: str, reasoning: str = "") -> None:
        """Append to a message; one that was finished streams again. Raises NoMessageError."""
        with self._lock:
            held = self._writing.get(message)
            if held is None:
                held = self._held_with(message)
                held.put(replace(held.messages[message], state=State.STREAMING))
                self._write_to(held, message)
            stream = held.streams[message]
            stream.texts.append(_storable(text))
            stream.reasonings.append(_storable(reasoning))
            self._want()

    def finish(self, message: int, state: State, answered: Answered | None, error: str = "") -> None:
        """End a message that streams, or say anew how it ended. Raises NoMessageError."""
        with self._lock:
            held = self._writing.pop(message, None) or self._held_with(message)
            held.catch_up()
            held.streams.pop(message, None)
            if answered is not None:
                answered = replace(answered, model=_storable(answered.model))
                held.change("model", answered.model)
            held.put(replace(held.messages[message], state=state, answered=answered, error=_storable(error)))
            self._touched(held, self._clock())
            self._want()

    def use_leaf(self, conversation: str, leaf: int) -> None:
        """Let the path to this message be the one used last. Raises NoConversationError, NoMessageError."""
        with self._lock:
            held = self._find(conversation)
            message = Tree(held.messages.values()).message(leaf)
            if message.used != held.last_used:
                held.put(replace(message, used=new_id(self._clock(), held.last_used)))
                self._want()

    def rename(self, conversation: str, title: str) -> None:
        """Raises NoConversationError."""
        with self._lock:
            held = self._find(conversation)
            held.change("title", _storable(title))
            self.list_version += 1
            self._want()

    def delete(self, conversation: str) -> None:
        """Hide a conversation; after 30 days it is purged. Raises NoConversationError."""
        with self._lock:
            held = self._find(conversation)
            held.change("deleted_at", self._clock())
            self.list_version += 1
            self._want()

    def undelete(self, conversation: str) -> None:
        """Show a conversation again. Raises NoConversationError where it is there no more."""
        with self._lock:
            held = self._find(conversation, also_deleted=True)
            held.change("deleted_at", None)
            self.list_version += 1
            self._want()

    def purge(self, conversation: str) -> None:
        """Remove a conversation, deleted or not, and all its messages. Raises NoConversationError.

        What the search index knows of it goes little by little, or when the history is closed.
        """
        with self._lock:
            held = self._find(conversation, also_deleted=True)
            for message in held.streams:
                del self._writing[message]
            del self._held[conversation]
            self._purged.add(conversation)
            self.list_version += 1
            self._want()

    # -- reading

    def conversations(self, *, limit: int = 200, before: float | None = None) -> list[Conversation]:
        """Return conversations, the latest first; only those that were used last before a time, where one is given.

        While another program holds the file they are as they were when it could last be read. Raises HistoryFileError.
        """
        before = math.inf if before is None else before
        with self._lock:
            asked = limit + len(self._held) + len(self._purged)
            try:
                self._listed = self._file.read(lambda database: rows.conversations(database, asked, before))
                newer = [held.now() for held in self._held.values() if not held.is_saved]
            except HistoryLockedError:
                newer = [held.now() for held in self._held.values()]
            all_ = {each.id: each for each in (*self._listed, *newer)}.values()
            shown = [
                each
                for each in all_
                if each.deleted_at is None and each.updated_at < before and each.id not in self._purged
            ]
        return sorted(shown, key=lambda each: each.updated_at, reverse=True)[:limit]

    def conversation(self, id: str, *, also_deleted: bool = False) -> Conversation:  # noqa: A002
        """Return a conversation, `also_deleted` one that can be brought back. Raises NoConversationError, HistoryFileError."""
        with self._lock:
            return self._find(id, is_fresh=True, also_deleted=also_deleted).now()

    def latest(self) -> Conversation | None:
        """Return the conversation that was used last. Raises HistoryFileError."""
        return next(iter(self.conversations(limit=1)), None)

    def tree(self, conversation: str) -> Tree:
        """Return all messages of a conversation that was not deleted. Raises NoConversationError, HistoryFileError."""
        with self._lock:
            held = self._find(conversation, is_fresh=True)
            held.catch_up()
            return Tree(held.messages.values())

    def answers(self, model: str, limit: int = 20) -> list[Answered]:
        """Return how this model's last answers were made, the newest first. Raises HistoryFileError."""
        with self._lock:
            found = self._file.read(lambda database: rows.answers(database, model, limit))
            for message in (message for held in self._held.values() for message in held.messages.values()):
                if message.answered is not None and message.answered.model == model:
                    found[message.id] = message.answered
        return [found[message] for message in sorted(found, reverse=True)[:limit]]

    def search(
        self,
        words: str,
        *,
        role: Role | None = None,
        model: str | None = None,
        since: float | None = None,
        limit: int = 50,
    ) -> list[Found]:
        """Return messages that hold all the words, the newest first; what still streams is not searched.

        Words are found whatever their case and accents, the last one also where it goes on; quotes make a phrase.
        Without words, all that the filters let through. `model` is how the name of the one that answered begins; `since` is in
        seconds since 1970. Raises HistoryFileError.
        """
        wanted = Search(words, role, None if model is None else _storable(model), since or 0.0, limit)
        with self._lock:
            held = self._held.values()
            deleted = [each.record for each in held if "deleted_at" in each.columns]
            hidden = {each.id for each in deleted if each.deleted_at is not None} | self._purged
            restored = {each.id for each in deleted if each.deleted_at is None}
            unsaved = [each.unsaved_part() for each in self._held.values() if each.unsaved]
            numbers = [message.id for change in unsaved for message in change.messages]
            found = self._file.read(lambda database: rows.search(database, wanted, numbers, hidden, restored))
            found += _found_in_memory(wanted, unsaved)
            found = [self._as_held(each) for each in found]
        return sorted(found, key=lambda each: each.message, reverse=True)[:limit]

    def _as_held(self, found: Found) -> Found:
        held = self._held.get(found.conversation.id)
        return found if held is None else replace(found, conversation=held.now())

    # -- on disk

    def flush(self) -> None:
        """Wait until everything is on disk, or could not be written: then `why_not_saved` says why."""
        self._saver.flush()

    def close(self) -> None:
        """Write what is not on disk; what still streams is interrupted. The object cannot be used any more."""
        for message in [*self._writing]:
            self.finish(message, State.INTERRUPTED, None)
        self._saver.close()
        self._file.close()

    def _want(self) -> None:
        if self._file.can_be_written:
            self._saver.want()

    def _save(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.catch_up()
            changes = [(held, held.unsaved_part()) for held in self._held.values() if not held.is_saved]
            purged = {*self._purged}
        has_more = self._file.write((change for _, change in changes), purged, self._clock())
        if not self._file.can_be_written:
            return
        with self._lock:
            self._purged -= purged
            for held, change in changes:
                held.saved(change)
        if has_more:
            self._saver.want()

    # -- in memory

    def _find(self, name: str, *, is_fresh: bool = False, also_deleted: bool = False) -> Held:
        """Return a conversation in memory, as the file has it now if it is to be fresh and the file can be read."""
        held = None if name in self._purged else self._held.get(name)
        if (held is None or is_fresh) and name not in self._purged:
            try:
                held = self._loaded(name, held)
            except HistoryFileError:
                if held is None:
                    raise
        if held is None:
            self._held.pop(name, None)
        if held is None or not (also_deleted or held.record.deleted_at is None):
            raise NoConversationError(f"there is no conversation {printable(name)}")
        self._hold(held)
        return held

    def _loaded(self, name: str, held: Held | None) -> Held | None:
        record = self._file.read(lambda database: rows.conversation(database, name))
        if record is None:  # another process may have removed it
            return held if held is not None and held.is_new else None
        held = Held(record) if held is None else held
        held.reload(record, self._file.read(lambda database: rows.messages(database, name)))
        return held

    def _hold(self, held: Held) -> None:
        self._held.pop(held.record.id, None)
        self._held[held.record.id] = held
        for name, each in [*self._held.items()][:-_HELD]:
            if each.is_saved:
                del self._held[name]

    def _held_with(self, message: int) -> Held:
        for held in self._held.values():
            if message in held.messages:
                return held
        conversation = self._file.read(lambda database: rows.conversation_of(database, message))
        if conversation is None:
            raise NoMessageError(f"there is no message {message}")
        return self._find(conversation, also_deleted=True)

    def _write_to(self, held: Held, message: int) -> None:
        held.streams[message] = Stream()
        self._writing[message] = held

    def _touched(self, held: Held, now: float) -> None:
        held.change("updated_at", max(now, held.record.updated_at))
        self.list_version += 1


def _storable(text: str) -> str:
    """Return the text as UTF-8 can hold it: halves of surrogate pairs, as in names of files, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _found_in_memory(wanted: Search, unsaved: list[Change]) -> list[Found]:
    if not unsaved:
        return []
    database = memory_database()
    try:
        rows.write(database, (dataclasses.replace(change, is_new=True) for change in unsaved))
        return rows.search(database, wanted)
    finally:
        database.close()
