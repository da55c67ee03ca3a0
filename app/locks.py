"""Locks between this user's processes. The system frees one when its holder ends, however it ends."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pinyon.models.disk import private_folder


class LockHeldError(Exception):
    """Another process holds the lock; whoever asked for it says what that means."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock until the context ends; `path` is the lock's own file, which is made where it is missing, and stays.

    Raises:
        LockHeldError: another process holds it.
        OSError: its folder cannot be used.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  commands that only look need no lock

    try:
        lock = FileLock(private_folder(path.parent) / path.name, mode=0o600).acquire(blocking=False)
    except Timeout:
        raise LockHeldError(str(path)) from None
    with lock:
        yield
