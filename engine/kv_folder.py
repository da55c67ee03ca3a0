"""The folder of all blocks of KV: a subfolder for each root key, whose bytes count against one cap.

A root key is the digest of everything that decides what the KV of given tokens is, and how its bytes are laid out. What is
kept for one is nothing to another.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pinyon.engine.answer_memory import Spelling
from pinyon.engine.block_disk import BlockDisk, key_of
from pinyon.engine.block_file import MAGIC, BlockHeader
from pinyon.engine.block_store import Noted
from pinyon.engine.cache_notes import CacheNotes
from pinyon.engine.file_system import FileSystem
from pinyon.engine.weights_digest import MEMORY_NAME, file_identity, weights_digest

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NAME_CHARS: Final = 32
_ABOUT: Final = "about.json"
_OWN_SHARE: Final = 0.5
"""Of the cap, for the model in use: other models' subfolders give way to it, the longest unused first."""
_LOCK_WAIT_S: Final = 0.5
"""Whoever looks whether a subfolder is in use holds its lock for a moment."""
_NOTES_SHARE: Final = 1 / 8
_MAX_NOTES_BYTES: Final = 48 << 20
"""For what is kept beside the blocks: a third for the notes, as much for their journal, and the rest for small files."""


class About(msgspec.Struct, frozen=True):
    """What a subfolder is for, as a user may read it: the model's file, and the settings that its KV depends on."""

    model: str = ""
    settings: tuple[str, ...] = ()


class DiskTier(NamedTuple):
    """The blocks of one root key on disk: those found there, and the room for all; and what else is kept there.

    `weights` is the SHA-256 of the model's file. `elsewhere` are the keys of the blocks of all other root keys: those of the same tokens have the same key.
    """

    weights: bytes
    disk: BlockDisk
    found: list[BlockHeader]
    cap_bytes: int
    notes: CacheNotes
    answers: list[Spelling]
    noted: Noted
    """Which of the blocks and answers are whose."""
    elsewhere: frozenset[bytes]
    notes_bytes: int = 0
    """What the notes may take, beside the blocks' cap."""


def open_tier(
    folder: Path, model: Path, settings: Sequence[str], cap_bytes: int, identity: str | None = None
) -> DiskTier:
    """Open what is kept for a model under these settings. Reads the whole model the first time: not for the engine thread.

    `identity` is the model's when it was loaded, None for the one that it has now.

    Raises:
        OSError: the folder or the model cannot be used, or the model has changed since.
        sqlite3.Error: the notes cannot be used.
    """
    files = FileSystem()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    weights = weights_digest(model, identity or file_identity(model), folder / MEMORY_NAME, files)
    root = root_key(weights, settings)
    own, own_cap_bytes = open_root(folder, root, cap_bytes)
    notes_bytes = min(int(own_cap_bytes * _NOTES_SHARE), _MAX_NOTES_BYTES)
    with contextlib.ExitStack() as threads:  # they must not outlive a failure
        lock = lock_of(own)
        try:
            threads.enter_context(lock.acquire(timeout=_LOCK_WAIT_S))
        except TimeoutError:
            raise OSError(f"another engine with the same weights and settings uses {own}") from None
        notes = CacheNotes(own, notes_bytes // 3)
        threads.callback(notes.close)
        disk = BlockDisk(own, root, files, lock=lock)
        threads.callback(disk.close)
        _write_about(own, About(model_text(model), tuple(settings)), files)
        found, elsewhere = [*disk.scan()], _keys_elsewhere(folder, own)
        noted = notes.noted(header.key for header in found)
        tier = DiskTier(
            weights, disk, found, own_cap_bytes - notes_bytes, notes, notes.answers(), noted, elsewhere, notes_bytes
        )
        threads.pop_all()
    return tier


def model_text(model: Path) -> str:
    """Return a model's path as `About` has it."""
    return os.fsencode(model).decode("utf-8", "replace")


def _write_about(own: Path, about: About, files: FileSystem) -> None:
    """Say what a subfolder is for, unless it does; a disk that is full can still be read from."""
    if read_about(own) != about:
        with contextlib.suppress(OSError):
            files.write(own / _ABOUT, (msgspec.json.encode(about),))


def read_about(own: Path) -> About:
    """Return what a subfolder is for; empty where it does not say."""
    try:
        return msgspec.json.decode((own / _ABOUT).read_bytes(), type=About)
    except (OSError, msgspec.DecodeError):
        return About()


def root_key(weights: bytes, settings: Sequence[str]) -> bytes:
    """Return the digest of the weights and of all settings that KV depends on."""
    return hashlib.sha256(b"\0".join((MAGIC, weights, *(setting.encode() for setting in settings)))).digest()


def open_root(folder: Path, root: bytes, cap_bytes: int) -> tuple[Path, int]:
    """Return the subfolder of a root key, made if it is missing, and how many bytes it may hold.

    Those of other engines that are running count against these' own caps, and are left alone.

    Raises:
        OSError: the folder cannot be used.
    """
    own = folder / root.hex()[:_NAME_CHARS]
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    own.touch()  # it is in use
    others = sorted((each for each in _unused(folder) if each != own), key=_last_use)
    sizes = {each: size_bytes(each) for each in others}
    for oldest in others:
        if sum(sizes.values()) <= cap_bytes * (1 - _OWN_SHARE):
            break
        shutil.rmtree(oldest, ignore_errors=True)
        sizes[oldest] = size_bytes(oldest)
    return own, max(0, cap_bytes - sum(sizes.values()))


def unused_bytes(folder: Path) -> int:
    """Return what the subfolders hold that no engine uses now. Raises OSError."""
    return sum(map(size_bytes, _unused(folder)))


def resized(own_bytes: int, cap_bytes: int, unused_bytes: int) -> int:
    """Return how many bytes a subfolder may hold that held at most `own_bytes`, when its engine's part of the cap becomes another one.

    It is less at once, but more only as far as what no engine uses leaves room for it.
    """
    return max(min(own_bytes, cap_bytes), cap_bytes - unused_bytes)


def _unused(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir() and not _is_in_use(each)]


def lock_of(subfolder: Path) -> "BaseFileLock":
    """Return the lock that the engine holds which uses a subfolder; the system frees it when that ends."""
    from filelock import FileLock  # noqa: PLC0415  commands that only look need no lock

    return FileLock(subfolder.with_suffix(".lock"), mode=0o600)


def _is_in_use(subfolder: Path) -> bool:
    from filelock import Timeout  # noqa: PLC0415

    try:
        with lock_of(subfolder).acquire(blocking=False):
            return False
    except Timeout:
        return True


def _keys_elsewhere(folder: Path, own: Path) -> frozenset[bytes]:
    """Return the keys of the blocks in all subfolders but one, as the files' names tell them."""
    return frozenset(key for path in folder.glob("*/*") if path.parent != own and (key := key_of(path)) is not None)


def size_bytes(folder: Path) -> int:
    """Return what the files in a folder hold together."""
    total = 0
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):  # it has just gone
            total += path.stat().st_size
    return total


def _last_use(folder: Path) -> int:
    return folder.stat().st_mtime_ns
