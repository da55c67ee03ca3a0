"""File systems for the block store's tests: one takes notes, one fails. Both work on a real folder, without syncing it."""

import errno
import os
import threading
from collections.abc import Sequence
from enum import Enum
from itertools import count
from pathlib import Path

from pinyon.engine.block import Payload
from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.file_system import FileSystem


class RecordingFiles(FileSystem):
    """`calls` are methods and file names, `peak_bytes` the most that a folder has had after any of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.peak_bytes = 0

    def count(self, method: str) -> int:
        return sum(called == method for called, _ in self.calls)

    def paths(self, folder: Path) -> list[Path]:
        self._note("paths", folder)
        return super().paths(folder)

    def head(self, path: Path, max_bytes: int) -> tuple[bytes, int, float]:
        self._note("head", path)
        return super().head(path, max_bytes)

    def read(self, path: Path) -> bytes:
        self._note("read", path)
        return super().read(path)

    def write(self, path: Path, parts: Sequence[Payload]) -> None:
        self._note("write", path)
        path.write_bytes(b"".join(parts))
        self._measure(path.parent)

    def replace(self, source: Path, target: Path) -> None:
        self._note("replace", target)
        super().replace(source, target)
        self._measure(target.parent)

    def delete(self, path: Path) -> None:
        self._note("delete", path)
        super().delete(path)

    def _note(self, method: str, path: Path) -> None:
        self.calls.append((method, path.name))

    def _measure(self, folder: Path) -> None:
        self.peak_bytes = max(self.peak_bytes, folder_bytes(folder))


class Fault(Enum):
    NO_SPACE = errno.ENOSPC
    BROKEN = errno.EIO
    READ_ONLY = errno.EROFS
    QUOTA = errno.EDQUOT
    SHORT = 0
    """No error, but only half of the bytes."""


class FaultyFiles(RecordingFiles):
    """The call with the number `fail_at` fails, or with `lasting` that one and all later ones.

    What fails is not done, with two exceptions: half of a file is written, and a rename on a broken disk is.
    """

    def __init__(self, fault: Fault, fail_at: int, *, lasting: bool = False) -> None:
        super().__init__()
        self._fault = fault
        self._fail_at = fail_at
        self._lasting = lasting
        self._numbers = count()
        self.has_failed = False

    def paths(self, folder: Path) -> list[Path]:
        self._is_short("paths", folder)
        return super().paths(folder)

    def head(self, path: Path, max_bytes: int) -> tuple[bytes, int, float]:
        is_short = self._is_short("head", path)
        data, *status = super().head(path, max_bytes)
        return (data[: len(data) // 2] if is_short else data, *status)

    def read(self, path: Path) -> bytes:
        is_short = self._is_short("read", path)
        data = super().read(path)
        return data[: len(data) // 2] if is_short else data

    def write(self, path: Path, parts: Sequence[Payload]) -> None:
        data = b"".join(parts)
        try:
            is_short = self._is_short("write", path)
        except OSError:
            if self._fault is not Fault.READ_ONLY:
                path.write_bytes(data[: len(data) // 2])
                self._measure(path.parent)
            raise
        super().write(path, [data[: len(data) // 2]] if is_short else parts)

    def replace(self, source: Path, target: Path) -> None:
        try:
            self._is_short("replace", target)
        except OSError:
            if self._fault is Fault.BROKEN:
                source.replace(target)
            raise
        super().replace(source, target)

    def delete(self, path: Path) -> None:
        self._is_short("delete", path)
        super().delete(path)

    def _is_short(self, method: str, path: Path) -> bool:
        """Whether it is this call's turn, and it is to be done by half. Raises OSError for the other faults."""
        number = next(self._numbers)
        is_turn = number == self._fail_at or (self._lasting and number > self._fail_at)
        self.has_failed |= is_turn
        if is_turn and self._fault is not Fault.SHORT:
            self._note(method, path)
            raise OSError(self._fault.value, os.strerror(self._fault.value))
        return is_turn


def folder_bytes(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries)


def settle(disk: BlockDisk) -> None:
    """Wait until a disk's writer has done what it was asked for."""
    done = threading.Event()
    disk._jobs.put(done.set)
    assert done.wait(30), "the writer has ended or hangs"
