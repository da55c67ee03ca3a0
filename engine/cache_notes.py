"""What is kept beside the blocks of one root key: how answers were spelled, what was said about the last requests, and which
conversations all of that is of.

An SQLite file with one connection that writes, on a thread of its own; nobody waits for it. What cannot be written is lost, and
nothing else. What is deleted is overwritten in the file. A file that is damaged begins anew.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine.answer_memory import MAX_ANSWERS, Spelling
from pinyon.engine.block_store import Noted
from pinyon.engine.cache_report import CacheReport

MAX_NOTES: Final = 1000
FILE_NAME: Final = "notes.db"
_SCHEMA: Final = 2
"""A file with other tables is begun anew."""
_TABLES: Final = f"""
    BEGIN IMMEDIATE;
    DROP TABLE IF EXISTS answers;
    DROP TABLE IF EXISTS notes;
    DROP TABLE IF EXISTS conversations;
    CREATE TABLE answers (
        number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL, tokens BLOB NOT NULL, time_s REAL NOT NULL
    );
    CREATE TABLE notes (number INTEGER PRIMARY KEY, note BLOB NOT NULL);
    CREATE TABLE conversations (conversation TEXT, key BLOB, PRIMARY KEY (conversation, key)) WITHOUT ROWID;
    PRAGMA user_version = {_SCHEMA};
    COMMIT;
"""
_HALVE: Final = """
    DELETE FROM answers WHERE number < (SELECT (min(number) + max(number)) / 2 FROM answers);
    DELETE FROM notes WHERE number < (SELECT (min(number) + max(number)) / 2 FROM notes);
"""
_PAGE_BYTES: Final = 4096
"""SQLite's default."""
_ANSWERS: Final = """
    SELECT key, tokens, time_s FROM answers
    WHERE typeof(key) = 'blob' AND typeof(tokens) = 'blob' AND typeof(time_s) = 'real' ORDER BY number
"""
# The keys of a conversation are those of blocks and answers, and the ids of requests.
_ADD_ANSWER: Final = "INSERT OR REPLACE INTO answers (key, tokens, time_s) VALUES (?, ?, ?)"
_TRIM_ANSWERS: Final = "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?"
_ADD_NOTE: Final = "INSERT INTO notes (note) VALUES (?)"
_TRIM_NOTES: Final = "DELETE FROM notes WHERE number <= (SELECT max(number) FROM notes) - ?"
_ADD_KEY: Final = "INSERT OR IGNORE INTO conversations (conversation, key) VALUES (?, ?)"
_KEYS_OF_ONE_ALONE: Final = """
    SELECT key FROM conversations WHERE conversation = :it
    EXCEPT SELECT key FROM conversations WHERE conversation <> :it
"""


class Note(msgspec.Struct, frozen=True):
    """What was said about a request at a time (seconds since 1970)."""

    request_id: str
    time_s: float
    prompt_tokens: int
    report: CacheReport


class CacheNotes:
    """Any thread may ask for additions. The file takes at most `cap_bytes`, and while it is written a journal as much again.

    Raises sqlite3.Error or OSError if it cannot be opened.
    """

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-notes")
        try:
            self._database = self._thread.submit(_opened_or_begun, folder, cap_bytes).result()
        except BaseException:
            self._thread.shutdown()
            raise
        self._unwritten: list[tuple[str, bytes]] = []
        """Whose blocks are is not lost when it cannot be written: they could not be forgotten any more."""

    def answers(self) -> list[Spelling]:
        """Return the answers that were remembered, oldest first; none that is unreadable. Raises sqlite3.Error."""
        rows = self._thread.submit(lambda: self._database.execute(_ANSWERS).fetchall()).result()
        found: list[Spelling] = []
        for key, tokens, time_s in rows:
            with contextlib.suppress(msgspec.DecodeError):
                found.append(Spelling(key, msgspec.msgpack.decode(tokens, type=tuple[int, ...]), time_s))
        return found

    def noted(self, blocks: Iterable[bytes]) -> Noted:
        """Return which of these blocks, and of all else here, are whose; forget that of what is here no more.

        Raises sqlite3.Error.
        """
        return self._thread.submit(_tidied, self._database, {*blocks}).result()

    def add(self, spellings: Sequence[Spelling], note: Note | None, conversation: str | None = None) -> None:
        """Have an answer's spellings written, what is to be said about its request, and the conversation that it is of."""
        self._thread.submit(self._write, spellings, note, conversation)

    def _write(self, spellings: Sequence[Spelling], note: Note | None, conversation: str | None) -> None:
        keys = [each.key for each in spellings] + ([] if note is None else [note.request_id.encode()])
        rows = [(key, msgspec.msgpack.encode(tokens), time_s) for key, tokens, time_s in spellings]

        def write() -> None:
            self._database.executemany(_ADD_ANSWER, rows)
            self._database.execute(_TRIM_ANSWERS, (MAX_ANSWERS,))
            if note is not None:
                self._database.execute(_ADD_NOTE, (msgspec.msgpack.encode(note),))
                self._database.execute(_TRIM_NOTES, (MAX_NOTES,))
            if conversation is not None:
                self._database.executemany(_ADD_KEY, [(conversation, key) for key in keys])

        self._wrote(write)

    def _wrote(self, write: Callable[[], None]) -> bool:
        """Write in one piece; where the file is full, half of it goes first. Tell whether it was written."""
        with contextlib.suppress(sqlite3.Error):
            try:
                with self._database:
                    write()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    return False
                self._database.executescript(_HALVE)
                with self._database:
                    write()
            return True
        return False

    def add_noted(self, noted: Noted) -> None:
        """Have written which blocks are of which conversations."""
        self._thread.submit(self._write_noted, noted)

    def _write_noted(self, noted: Noted) -> None:
        self._unwritten += noted
        if self._wrote(self._add_unwritten):
            self._unwritten.clear()

    def _add_unwritten(self) -> None:
        self._database.executemany(_ADD_KEY, self._unwritten)

    def forget(self, conversation: str, files: Future[None]) -> Future[None]:
        """Have everything forgotten that is of this conversation alone, once the files have gone.

        The future raises what `files` does, and sqlite3.Error.
        """
        return self._thread.submit(self._after, files, lambda: _forget(self._database, conversation))

    def forget_before(self, time_s: float, files: Future[None]) -> Future[None]:
        """Have everything forgotten that was noted before a time, once the files have gone; as `forget`."""
        return self._thread.submit(self._after, files, lambda: _forget_before(self._database, time_s))

    @staticmethod
    def _after(files: Future[None], forget: Callable[[], None]) -> None:
        files.result()
        forget()

    def close(self) -> None:
        """Write what was asked for."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()


def _opened(folder: Path) -> sqlite3.Connection:
    path = folder / FILE_NAME
    path.touch(mode=0o600)
    database = sqlite3.connect(path)
    try:
        database.execute("PRAGMA secure_delete = ON")
        if database.execute("PRAGMA user_version").fetchone() != (_SCHEMA,):
            database.executescript(_TABLES)
        if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError(f"{path} is damaged")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _opened_or_begun(folder: Path, cap_bytes: int) -> sqlite3.Connection:
    path = folder / FILE_NAME
    database = None
    with contextlib.suppress(sqlite3.Error):
        database = _opened(folder)
    if database is None:
        path.unlink()
        path.with_name(f"{FILE_NAME}-journal").unlink(missing_ok=True)
        database = _opened(folder)
    if path.stat().st_size > cap_bytes:
        database.executescript("DELETE FROM answers; DELETE FROM notes; VACUUM;")
    database.execute(f"PRAGMA max_page_count = {max(1, cap_bytes // _PAGE_BYTES)}")
    return database


def _tidied(database: sqlite3.Connection, blocks: set[bytes]) -> Noted:
    rows = database.execute("SELECT conversation, key FROM conversations").fetchall()
    answers = {key for (key,) in database.execute("SELECT key FROM answers")}
    known = blocks | answers | {note.request_id.encode() for _, note in _notes(database)}
    with database:
        database.executemany(
            "DELETE FROM conversations WHERE conversation = ? AND key = ?", [row for row in rows if row[1] not in known]
        )
    return [(conversation, key) for conversation, key in rows if key in known]


def _notes(database: sqlite3.Connection) -> list[tuple[int, Note]]:
    """Return the notes with their numbers, oldest first; none that is unreadable."""
    rows = database.execute("SELECT number, note FROM notes WHERE typeof(note) = 'blob' ORDER BY number").fetchall()
    notes: list[tuple[int, Note]] = []
    for number, note in rows:
        with contextlib.suppress(msgspec.DecodeError):
            notes.append((number, msgspec.msgpack.decode(note, type=Note)))
    return notes


def _keys_of_one_alone(database: sqlite3.Connection, conversation: str) -> set[bytes]:
    return {key for (key,) in database.execute(_KEYS_OF_ONE_ALONE, {"it": conversation})}


def _forget(database: sqlite3.Connection, conversation: str) -> None:
    with database:
        keys = _keys_of_one_alone(database, conversation)
        database.executemany("DELETE FROM answers WHERE key = ?", [(key,) for key in keys])
        for number, note in _notes(database):
            if note.request_id.encode() in keys:
                database.execute("DELETE FROM notes WHERE number = ?", (number,))
            elif keys and note.report.expected:  # that may quote the conversation
                quiet = msgspec.structs.replace(note, report=msgspec.structs.replace(note.report, expected=""))
                database.execute("UPDATE notes SET note = ? WHERE number = ?", (msgspec.msgpack.encode(quiet), number))
        database.execute("DELETE FROM conversations WHERE conversation = ?", (conversation,))


def _forget_before(database: sqlite3.Connection, time_s: float) -> None:
    with database:
        database.execute("DELETE FROM answers WHERE time_s < ?", (time_s,))
        young = {number for number, note in _notes(database) if note.time_s >= time_s}
        old = [row for row in database.execute("SELECT number FROM notes").fetchall() if row[0] not in young]
        database.executemany("DELETE FROM notes WHERE number = ?", old)


def conversation_keys(folder: Path, conversation: str) -> set[bytes]:
    """Return the keys of what is of this conversation alone. Raises sqlite3.Error."""
    if not (folder / FILE_NAME).exists():
        return set()
    with contextlib.closing(_opened(folder)) as database:
        return _keys_of_one_alone(database, conversation)


def forget_conversation(folder: Path, conversation: str) -> None:
    """Forget what is of this conversation alone. Raises sqlite3.Error."""
    if (folder / FILE_NAME).exists():
        with contextlib.closing(_opened(folder)) as database:
            _forget(database, conversation)


def forget_notes(folder: Path, before_s: float) -> None:
    """Forget what was noted before a time. Raises sqlite3.Error."""
    if (folder / FILE_NAME).exists():
        with contextlib.closing(_opened(folder)) as database:
            _forget_before(database, before_s)


def read_notes(folder: Path) -> list[Note]:
    """Return the notes of a folder, oldest first, also while another process adds some. Raises sqlite3.Error."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return [note for _, note in _notes(database)]
