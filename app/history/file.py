"""The file under a history: opened when it is there or needed, read and written with errors that say what happened."""

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from pinyon.app.history import rows
from pinyon.app.history.database import empty_database, explained, open_database
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.rows import Change
from pinyon.models.disk import printable

_Read = TypeVar("_Read")


class HistoryFile:
    """Nothing is in it until it is open. Any thread may read, one writes. `path` None is a file that is never there."""

    def __init__(self, path: Path | None, on_trouble: Callable[[str], None]) -> None:
        self._path = path
        self._on_trouble = on_trouble
        self._reading = threading.Lock()
        self._database = empty_database()
        self._is_open = self._is_tidy = self._is_rewriting = False

    @property
    def can_be_written(self) -> bool:
        return self._path is not None and not self.why_read_only

    @property
    def why_read_only(self) -> str:
        return self._database.why_read_only

    def open_if_there(self) -> None:
        """Raises HistoryFileError: it is there and cannot be opened now."""
        if self._path is not None and self._path.exists():
            self._open(self._path)

    def _open(self, path: Path) -> None:
        try:
            database = open_database(path)
        except sqlite3.Error as error:
            raise explained(error, path) from error
        except OSError as error:
            raise HistoryFileError(f"{printable(path)} cannot be opened: {error.strerror}") from error
        with self._reading:
            self._database.reader.close()
            self._database, self._is_open = database, True
        for told in (database.notice, database.why_read_only and f"not saved: {database.why_read_only}"):
            if told:
                self._on_trouble(told)

    def read(self, read: Callable[[sqlite3.Connection], _Read]) -> _Read:
        """Return what `read` does. Raises HistoryFileError."""
        try:
            with self._reading:
                return read(self._database.reader)
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise HistoryFileError(f"the history holds what this version of Pinyon cannot read: {error}") from error

    def write(self, changes: Iterable[Change], purged: Collection[str], now: float) -> bool:
        """Write all of it or nothing, and begin the file where there is none; tell whether to come again soon.

        Raises HistoryFileError.
        """
        assert self._path is not None
        if not self._is_open:
            self._open(self._path)
        if (writer := self._database.writer) is None:
            return False
        try:
            if not self._is_tidy:
                rows.tidy(writer, now)
                self._is_tidy = True
            rows.write(writer, changes, purged)
            if purged or self._is_rewriting:
                self._is_rewriting = rows.rewrite_index(writer, is_first=bool(purged))
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        return self._is_rewriting

    def close(self) -> None:
        """Raises nothing."""
        with self._reading:
            self._database.close()
