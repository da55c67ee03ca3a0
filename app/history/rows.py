"""The history's statements: from rows to records, and from changes to rows."""

import json
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from pinyon.app.history.ids import first_id
from pinyon.app.history.records import Answered, Attached, Conversation, Found, Message, Role, State
from pinyon.app.history.words import Marks, begins, query
from pinyon.app.history.writers import is_alive, this_process

KEPT_AFTER_DELETION_S: Final = 30 * 86400
_SNIPPET_WORDS: Final = 24
_REWRITTEN_PAGES: Final = 256
"""What takes some hundredths of a second."""

_CONVERSATION: Final = """
    c.id, c.title, c.created_at, c.updated_at, c.model,
    (SELECT count(*) FROM messages WHERE messages.conversation = c.id), c.deleted_at
"""
_ONE: Final = f"SELECT {_CONVERSATION} FROM conversations c WHERE c.id = ?"
_LATEST: Final = f"""
    SELECT {_CONVERSATION} FROM conversations c
    WHERE c.deleted_at IS NULL AND c.updated_at < ? ORDER BY c.updated_at DESC LIMIT ?
"""
_CONVERSATION_OF: Final = "SELECT conversation FROM messages WHERE id = ?"
_MESSAGES: Final = """
    SELECT id, conversation, parent, role, text, reasoning, state, created_at, answered, attached, error, used, writer
    FROM messages WHERE conversation = ?
"""
_ANSWERS: Final = "SELECT id, answered FROM messages WHERE model = ? AND answered IS NOT NULL ORDER BY id DESC LIMIT ?"
# The index is read from its end, so that the newest come first and the rest is never looked at.
_SEARCH: Final = f"""
    SELECT {_CONVERSATION}, found.id, found.role, snippet(search, 0, :begin, :end, '…', {_SNIPPET_WORDS})
    FROM search CROSS JOIN messages found ON found.id = search.rowid
        CROSS JOIN conversations c ON c.id = found.conversation
    WHERE search MATCH :query AND search.rowid >= :first AND found.created_at >= :since
        AND (:role IS NULL OR found.role = :role)
        AND (:model IS NULL OR substr(found.model, 1, length(:model)) = :model)
        AND found.id NOT IN (SELECT value FROM json_each(:unsaved))
        AND c.id NOT IN (SELECT value FROM json_each(:hidden))
        AND (c.deleted_at IS NULL OR c.id IN (SELECT value FROM json_each(:restored)))
    ORDER BY search.rowid DESC LIMIT :limit
"""
_EVERY_MESSAGE: Final = f"role : ({' OR '.join(Role)})"

_START: Final = """
    INSERT INTO conversations (id, title, created_at, updated_at, model, deleted_at)
    VALUES (:id, :title, :created_at, :updated_at, :model, :deleted_at) ON CONFLICT (id) DO NOTHING
"""
# A message of a conversation that another process has removed meanwhile is not brought back.
_PUT: Final = """
    INSERT INTO messages (
        id, conversation, parent, role, text, reasoning, state, created_at, model, answered, attached, error, used, writer
    )
    SELECT
        :id, :conversation, :parent, :role, :text, :reasoning, :state, :created_at, :model, :answered, :attached, :error,
        :used, :writer
    WHERE EXISTS (SELECT 1 FROM conversations WHERE id = :conversation)
    ON CONFLICT (id) DO UPDATE SET
        text = :text, reasoning = :reasoning, state = :state, model = :model, answered = :answered, error = :error,
        used = :used, writer = :writer
    WHERE conversation = :conversation
"""
_STREAMING: Final = "SELECT id, writer FROM messages WHERE state = 'streaming'"
_INTERRUPT: Final = "UPDATE messages SET state = 'interrupted', writer = '' WHERE id = ?"
_OLD_DELETED: Final = "SELECT id FROM conversations WHERE deleted_at < ?"


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written of a conversation; of its record only the named columns, unless it is new."""

    record: Conversation
    is_new: bool
    columns: frozenset[str]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """`role`, `model` (how the name of an answer's begins) and `since` (seconds since 1970) leave out what is otherwise."""

    words: str
    role: Role | None
    model: str | None
    since: float
    limit: int

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.role is None and not self.model and not self.since


def conversation(database: sqlite3.Connection, wanted: str) -> Conversation | None:
    """Return a conversation, also one that was deleted. Raises sqlite3.Error."""
    row = database.execute(_ONE, (wanted,)).fetchone()
    return None if row is None else Conversation(*row)


def conversations(database: sqlite3.Connection, limit: int, before: float) -> list[Conversation]:
    """Return those that were not deleted, the latest first. Raises sqlite3.Error."""
    return [Conversation(*row) for row in database.execute(_LATEST, (before, limit))]


def conversation_of(database: sqlite3.Connection, message: int) -> str | None:
    """Return which conversation a message is in. Raises sqlite3.Error."""
    row = database.execute(_CONVERSATION_OF, (message,)).fetchone()
    return None if row is None else row[0]


def messages(database: sqlite3.Connection, wanted: str) -> list[Message]:
    """Return all of a conversation. Raises sqlite3.Error, ValueError for what no version of Pinyon wrote."""
    return [_message(*row) for row in database.execute(_MESSAGES, (wanted,))]


def answers(database: sqlite3.Connection, model: str, limit: int) -> dict[int, Answered]:
    """Return how a model's last answers were made, by message. Raises sqlite3.Error."""
    found = {message: _answered(text) for message, text in database.execute(_ANSWERS, (model, limit))}
    return {message: answered for message, answered in found.items() if answered is not None}


def search(
    database: sqlite3.Connection,
    wanted: Search,
    unsaved: Collection[int] = (),
    hidden: Collection[str] = (),
    restored: Collection[str] = (),
) -> list[Found]:
    """Return the newest messages that fit, but for the unsaved ones and those of hidden conversations.

    Words without a letter find nothing, no words all that the filters let through. Raises sqlite3.Error.
    """
    words = query(wanted.words)
    if not words and (wanted.words.strip() or wanted.is_all):
        return []
    parts = [
        words and f"text : ({words})",
        wanted.role and f"role : {wanted.role}",
        begins("model", wanted.model or ""),
    ]
    marks = Marks.new()
    chosen = {
        "query": " AND ".join(filter(None, parts)) or _EVERY_MESSAGE,
        "begin": marks.begin,
        "end": marks.end,
        "first": first_id(wanted.since),
        "since": wanted.since,
        "role": wanted.role,
        "model": wanted.model,
        "limit": wanted.limit,
        "unsaved": json.dumps([*unsaved]),
        "hidden": json.dumps([*hidden]),
        "restored": json.dumps([*restored]),
    }
    return [
        Found(Conversation(*row[:7]), row[7], Role(row[8]), *marks.read(row[9]))
        for row in database.execute(_SEARCH, chosen)
    ]


def write(database: sqlite3.Connection, changes: Iterable[Change], purged: Collection[str] = ()) -> None:
    """Write all of it or nothing. Raises sqlite3.Error."""
    database.execute("BEGIN IMMEDIATE")
    with database:  # commits, or takes everything back
        for change in changes:
            _put(database, change)
        _purge(database, purged)


def _put(database: sqlite3.Connection, change: Change) -> None:
    record = msgspec.structs.asdict(change.record)
    if change.is_new:
        database.execute(_START, record)
    if change.columns:  # also of a new one, which may be there already if an earlier try ended in an error
        assignments = ", ".join(f"{column} = :{column}" for column in sorted(change.columns))
        database.execute(f"UPDATE conversations SET {assignments} WHERE id = :id", record)
    database.executemany(_PUT, map(_columns, change.messages))


def tidy(database: sqlite3.Connection, now: float) -> None:
    """End what dead processes left unfinished, and remove what was deleted long ago. Raises sqlite3.Error."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        dead = [(message,) for message, writer in database.execute(_STREAMING).fetchall() if not is_alive(writer)]
        database.executemany(_INTERRUPT, dead)
        _purge(database, [row[0] for row in database.execute(_OLD_DELETED, (now - KEPT_AFTER_DELETION_S,)).fetchall()])


def _purge(database: sqlite3.Connection, purged: Collection[str]) -> None:
    if not purged:
        return
    ids = [(each,) for each in purged]
    database.executemany("DELETE FROM messages WHERE conversation = ?", ids)
    database.executemany("DELETE FROM conversations WHERE id = ?", ids)


def rewrite_index(database: sqlite3.Connection, *, is_first: bool) -> bool:
    """Rewrite a part of the search index without what was removed from the tables; tell whether there is more to do.

    The index only grows until then: it notes that a message has gone, and keeps its words. Raises sqlite3.Error.
    """
    before = database.total_changes
    # SQLite's documentation of FTS5, section 6.8: a negative number of pages has all of it rewritten.
    pages = -_REWRITTEN_PAGES if is_first else _REWRITTEN_PAGES
    database.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", (pages,))
    return database.total_changes - before > 1


def _message(
    number: int,
    conversation: str,
    parent: int | None,
    role: str,
    text: str,
    reasoning: str,
    state: str,
    created_at: float,
    answered: str | None,
    attached: str,
    error: str,
    used: int,
    writer: str,
) -> Message:
    stands = State(state)
    return Message(
        number,
        conversation,
        parent,
        Role(role),
        text,
        reasoning,
        State.INTERRUPTED if stands is State.STREAMING and not is_alive(writer) else stands,
        created_at,
        _answered(answered),
        msgspec.json.decode(attached, type=tuple[Attached, ...]),
        error,
        used,
    )


def _answered(text: str | None) -> Answered | None:
    with suppress(msgspec.DecodeError):  # another version's
        return None if text is None else msgspec.json.decode(text, type=Answered)
    return None


def _columns(message: Message) -> dict[str, str | float | None]:
    answered = message.answered
    return {
        "id": message.id,
        "conversation": message.conversation,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "reasoning": message.reasoning,
        "state": message.state,
        "created_at": message.created_at,
        "model": "" if answered is None else answered.model,
        "answered": None if answered is None else msgspec.json.encode(answered).decode(),
        "attached": msgspec.json.encode(message.attached).decode(),
        "error": message.error,
        "used": message.used,
        "writer": this_process() if message.state is State.STREAMING else "",
    }
