"""What is kept beside the blocks of one root key: how answers were spelled, and what was said about the last requests.

An SQLite file with one connection that writes, on a thread of its own; nobody waits for it. What cannot be written is lost, and
nothing else. A file that is damaged or too large begins anew.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine.answer_memory import MAX_ANSWERS, Spelling
from pinyon.engine.cache_report import CacheReport

MAX_NOTES: Final = 1000
FILE_NAME: Final = "notes.db"
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL, tokens BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS notes (number INTEGER PRIMARY KEY, note BLOB NOT NULL);
"""
_HALVE: Final = """
    DELETE FROM answers WHERE number < (SELECT (min(number) + max(number)) / 2 FROM answers);
    DELETE FROM notes WHERE number < (SELECT (min(number) + max(number)) / 2 FROM notes);
"""
_PAGE_BYTES: Final = 4096
"""SQLite's default."""
_ANSWERS: Final = (
    "SELECT key, tokens FROM answers WHERE typeof(key) = 'blob' AND typeof(tokens) = 'blob' ORDER BY number"
)
_ADD_ANSWER: Final = "INSERT OR REPLACE INTO answers (key, tokens) VALUES (?, ?)"
_TRIM_ANSWERS: Final = "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?"
_ADD_NOTE: Final = "INSERT INTO notes (note) VALUES (?)"
_TRIM_NOTES: Final = "DELETE FROM notes WHERE number <= (SELECT max(number) FROM notes) - ?"


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
        self._path = folder / FILE_NAME
        self._cap_bytes = cap_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-notes")
        self._database = self._thread.submit(self._open).result()

    def _open(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)
        try:
            if self._path.stat().st_size <= self._cap_bytes:
                return self._connect()
        except sqlite3.Error:
            pass
        self._path.unlink()
        self._path.with_name(f"{FILE_NAME}-journal").unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path)
        try:
            database.executescript(_TABLES)
            database.execute(f"PRAGMA max_page_count = {self._cap_bytes // _PAGE_BYTES}")
            if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError(f"{self._path} is damaged")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def answers(self) -> list[Spelling]:
        """Return the answers that were remembered, oldest first; none that is unreadable. Raises sqlite3.Error."""
        rows = self._thread.submit(lambda: self._database.execute(_ANSWERS).fetchall()).result()
        found: list[Spelling] = []
        for key, tokens in rows:
            with contextlib.suppress(msgspec.DecodeError):
                found.append(Spelling(key, msgspec.msgpack.decode(tokens, type=tuple[int, ...])))
        return found

    def add(self, spellings: Sequence[Spelling], note: Note | None) -> None:
        """Have an answer's spellings written, and what is to be said about its request."""
        self._thread.submit(self._write, spellings, note)

    def _write(self, spellings: Sequence[Spelling], note: Note | None) -> None:
        rows = [(key, msgspec.msgpack.encode(tokens)) for key, tokens in spellings]
        with contextlib.suppress(sqlite3.Error):
            try:
                self._add(rows, note)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    self._database.executescript(_HALVE)

    def _add(self, answers: Sequence[tuple[bytes, bytes]], note: Note | None) -> None:
        with self._database:
            self._database.executemany(_ADD_ANSWER, answers)
            self._database.execute(_TRIM_ANSWERS, (MAX_ANSWERS,))
            if note is not None:
                self._database.execute(_ADD_NOTE, (msgspec.msgpack.encode(note),))
                self._database.execute(_TRIM_NOTES, (MAX_NOTES,))

    def close(self) -> None:
        """Write what was asked for."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()


def forget_notes(folder: Path, before_s: float) -> None:
    """Forget what was noted before a time, and all answers if nothing newer is left. Raises sqlite3.Error."""
    kept = [note for note in read_notes(folder) if note.time_s >= before_s]
    if (folder / FILE_NAME).exists():
        with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
            database.execute(_TRIM_NOTES, (len(kept),))
            if not kept:
                database.execute("DELETE FROM answers")


def read_notes(folder: Path) -> list[Note]:
    """Return the readable notes of a folder, oldest first, also while another process adds some. Raises sqlite3.Error."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT note FROM notes WHERE typeof(note) = 'blob' ORDER BY number").fetchall()
    notes: list[Note] = []
    for (note,) in rows:
        with contextlib.suppress(msgspec.DecodeError):
            notes.append(msgspec.msgpack.decode(note, type=Note))
    return notes
