"""The history's file: opened, begun, brought to the newest schema; never written over where it is not plainly one of ours.

A file that is damaged or another program's is set aside as `history.db.corrupt-N`. One of a newer version, or one that may not be
written, is only read. The journal is SQLite's rollback journal: with a write-ahead log, SQLite before 3.51.3 can damage a file
that two processes write. One connection writes, another one reads, so that no reader waits for a write that waits.
"""

import glob
import os
import sqlite3
import stat
import tempfile
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from pinyon.app.history.errors import HistoryDamagedError, HistoryFileError, HistoryLockedError
from pinyon.app.history.schema import APPLICATION_ID, MIGRATIONS
from pinyon.app.history.words import searchable
from pinyon.app.history.writers import is_alive, this_process
from pinyon.models.disk import printable, private_folder, sync_folder

_MAGIC: Final = b"SQLite format 3\0"
_WRITER_WAITS_S: Final = 1.0
_READER_WAITS_S: Final = 0.25
"""A read may be called from the event loop."""
_CHECK_S: Final = 0.03
"""How long opening may look for damage: a few thousand conversations are looked through in that time."""
_BESIDE: Final = ("-journal", "-wal", "-shm")
_PROBES: Final = (
    "SELECT id, title, created_at, updated_at, model, deleted_at FROM conversations LIMIT 0",
    """SELECT id, conversation, parent, role, text, reasoning, state, created_at, answered, attached, error, used, writer
    FROM messages LIMIT 0""",
    "SELECT rowid, text, role, model FROM search LIMIT 0",
)


class Database(NamedTuple):
    """`writer` is None where nothing may be written, for the reason `why_read_only`. `notice` says what was set aside."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection | None = None
    why_read_only: str = ""
    notice: str = ""

    def close(self) -> None:
        self.reader.close()
        if self.writer is not None:
            self.writer.close()


def open_database(path: Path) -> Database:
    """Open the file, or begin it where there is none.

    Raises:
        HistoryFileError: it is held by another program, or is not a regular file.
        OSError, sqlite3.Error: it cannot be opened or begun: a full disk, missing rights.
    """
    notice = ""
    _remove_unfinished(path)
    if path.exists():
        seen = path.stat()
        try:
            return _opened(path)
        except HistoryDamagedError as error:
            kept = _set_aside(path, seen)
            notice = (
                f"{error}: it is kept as {printable(kept)}, and a new history was begun. "
                f"`sqlite3 {printable(kept.name)} .recover` may bring back what is in it."
            )
    _begin(path)
    return _opened(path)._replace(notice=notice)


def empty_database(why_read_only: str = "") -> Database:
    """Return what stands in for a file where there is none: it holds nothing, and nothing gets into it."""
    return Database(memory_database(), None, why_read_only)


def memory_database() -> sqlite3.Connection:
    """Return an empty database in memory, with the newest tables."""
    database = _prepared(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
    _migrate(database)
    return database


def connect(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    """Connect to a file that is there; `mode` is "rw" or "ro". Raises sqlite3.Error."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    return _prepared(
        sqlite3.connect(address, timeout=timeout_s, isolation_level=None, check_same_thread=False, uri=True)
    )


def explained(error: sqlite3.Error, path: Path | None) -> HistoryFileError:
    """Return the error as one that says what happened, for the user. `path` None is a history in memory."""
    file = "the history in memory" if path is None else printable(path)
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return HistoryLockedError(f"another program holds {file}: close it, or try again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return HistoryDamagedError(f"{file} is damaged ({error})")
        case sqlite3.SQLITE_FULL:
            return HistoryFileError(f"no room for {file}: the disk is full, or a quota is used up")
        case _:
            return HistoryFileError(f"{file} cannot be used: {error}")


def _prepared(database: sqlite3.Connection) -> sqlite3.Connection:
    database.create_function("searchable", 1, searchable, deterministic=True)
    return database


def _opened(path: Path) -> Database:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise HistoryFileError(f"{printable(path)} is not a regular file")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise HistoryDamagedError(f"{printable(path)} {'is no history' if status.st_size else 'is empty'}")
    is_writable = (
        bool(status.st_mode & 0o222) and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)
    )
    database = connect(path, "rw" if is_writable else "ro", _WRITER_WAITS_S)
    try:
        return _checked(path, database, is_writable)
    except sqlite3.Error as error:
        database.close()
        raise explained(error, path) from error
    except BaseException:
        database.close()
        raise


def _checked(path: Path, database: sqlite3.Connection, is_writable: bool) -> Database:
    if _number(database, "application_id") != APPLICATION_ID:
        raise HistoryDamagedError(f"{printable(path)} is a file of another program")
    _look_for_damage(path, database)
    if (version := _number(database, "user_version")) > len(MIGRATIONS):
        database.execute("PRAGMA query_only = ON")
        return _only_read(database, f"{printable(path)} was written by a newer Pinyon (schema {version})")
    if not is_writable:
        return _only_read(database, f"{printable(path)} may not be written")
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA secure_delete = ON")
    _migrate(database)
    if missing := _missing(database):
        raise HistoryDamagedError(f"{printable(path)} has other tables than a history ({missing})")
    reader = connect(path, "rw", _READER_WAITS_S)
    # Not "ro": what another process left half written when it was killed is undone by who reads next.
    reader.execute("PRAGMA query_only = ON")
    return Database(reader, database)


def _look_for_damage(path: Path, database: sqlite3.Connection) -> None:
    """Raise HistoryDamagedError for what is found in a short time; the rest shows when it is read."""
    if _number(database, "page_count") * _number(database, "page_size") > path.stat().st_size:
        raise HistoryDamagedError(f"{printable(path)} is cut off")
    enough = threading.Timer(_CHECK_S, database.interrupt)
    enough.start()
    try:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        has_ended = enough.is_alive()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        enough.cancel()
        enough.join()
    if has_ended and found != "ok":
        raise HistoryDamagedError(f"{printable(path)} is damaged ({found.splitlines()[-1]})")


def _only_read(database: sqlite3.Connection, why: str) -> Database:
    if missing := _missing(database):
        database.close()
        return empty_database(f"{why} and cannot be read ({missing})")
    return Database(database, None, why)


def _missing(database: sqlite3.Connection) -> str:
    """Return what of the tables that are read is not there; empty where all is."""
    try:
        for statement in _PROBES:
            database.execute(statement)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return str(error)
    return ""


def _migrate(database: sqlite3.Connection) -> None:
    if _number(database, "user_version") == len(MIGRATIONS):
        return
    database.execute("BEGIN IMMEDIATE")
    with database:  # commits, or takes everything back
        version = _number(database, "user_version")  # another process may have been first
        for statement in (each for migration in MIGRATIONS[version:] for each in migration):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _number(database: sqlite3.Connection, pragma: str) -> int:
    (number,) = database.execute(f"PRAGMA {pragma}").fetchone()
    return int(number)


def _begin(path: Path) -> None:
    """Make a new file: whole with all its tables, or not there at all. Another process may be first."""
    descriptor, name = tempfile.mkstemp(dir=private_folder(path.parent), prefix=f"{_unfinished(path)}{this_process()}.")
    os.close(descriptor)
    unfinished = Path(name)
    try:
        database = connect(unfinished, "rw", _WRITER_WAITS_S)
        try:
            _migrate(database)
        finally:
            database.close()
        if not path.exists():
            _move_beside(path, _spare(path))  # SQLite would take an old journal for one of the new file
            _link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def _unfinished(path: Path) -> str:
    """Return how the names of files begin that are not whole yet; their process follows."""
    return f".{path.name}."


def _remove_unfinished(path: Path) -> None:
    """Remove what processes have left that were killed while they began the file."""
    begins = _unfinished(path)
    for left in path.parent.glob(f"{glob.escape(begins)}*"):
        if not is_alive(left.name.removeprefix(begins).partition(".")[0]):
            with suppress(OSError):  # gone already, or a folder that may not be written
                left.unlink()


def _link(source: Path, target: Path) -> None:
    """Give the file its name without ever taking another file's."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        source.rename(target)


def _set_aside(path: Path, seen: os.stat_result) -> Path:
    """Rename the file that was seen, and what belongs to it, unless another process was first; return its new path."""
    kept = _spare(path)
    with suppress(FileNotFoundError):
        if os.path.samestat(path.stat(), seen):
            _move_beside(path, kept)
            path.rename(kept)
    return kept


def _spare(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.corrupt-{number}") for number in count(1))
    return next(name for name in names if not any(Path(f"{name}{suffix}").exists() for suffix in ("", *_BESIDE)))


def _move_beside(path: Path, kept: Path) -> None:
    for suffix in _BESIDE:
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
