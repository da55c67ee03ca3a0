"""The folder of KV as commands see it, whether or not an engine is using it: one subfolder for each model and its settings."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinyon.app.errors import FolderInUseError
from pinyon.app.locks import LockHeldError, locked
from pinyon.engine.block_disk import SUFFIX, UNFINISHED, key_of
from pinyon.engine.block_file import HEAD_BYTES, BlockDamagedError, decode, decode_head
from pinyon.engine.cache_notes import Note, conversation_keys, forget_conversation, forget_notes, read_notes
from pinyon.engine.events import Removed
from pinyon.engine.file_system import FileSystem
from pinyon.engine.kv_folder import About, model_text, read_about, size_bytes
from pinyon.models.disk import printable


class Kept(msgspec.Struct, frozen=True):
    """What is kept for a model under certain settings. `used_at` is in seconds since 1970."""

    folder: Path
    about: About
    blocks: int
    size_bytes: int
    used_at: float


def kept(folder: Path) -> list[Kept]:
    """Return what is in the folder, the latest used first."""
    return sorted(_subfolders(folder), key=lambda each: -each.used_at)


def _subfolders(folder: Path) -> Iterator[Kept]:
    for each in folder.glob("*/"):
        with contextlib.suppress(OSError):  # it has just gone
            files = [path for path in each.iterdir() if path.suffix == SUFFIX]
            yield Kept(each, read_about(each), len(files), size_bytes(each), each.stat().st_mtime)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Be the only process that uses the folder, until the context ends.

    Raises:
        FolderInUseError: another one is using it.
        OSError: it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock"))
        except LockHeldError:
            raise FolderInUseError(f"another process uses {printable(folder)}") from None
        yield


def clear(folder: Path, model: Path | None, before_s: float) -> Removed:
    """Delete the blocks and the notes, of one model or of all, that were written before a time (seconds since 1970).

    Blocks stay that newer ones go on from, and the subfolders: an engine may be using one, to which a missing file is a miss.
    """
    removed = Removed()
    for each in kept(folder):
        if model is None or each.about.model == model_text(model):
            removed += _delete_where(each.folder, lambda file: file.made_at < before_s)
            with contextlib.suppress(sqlite3.Error):
                forget_notes(each.folder, before_s)
    return removed


def forget(folder: Path, conversation: str) -> Removed:
    """Delete all that only this conversation left, of whatever model, as an engine does. The caller has the folder `held`.

    Raises:
        OSError, sqlite3.Error: not all of it could be deleted; it can be tried again.
    """
    removed = Removed()
    for each in kept(folder):
        keys = conversation_keys(each.folder, conversation)
        removed += _delete_where(each.folder, lambda file, keys=keys: file.key in keys)  # type: ignore[misc]
        forget_conversation(each.folder, conversation)  # last: it tells what is to be deleted
    return removed


class _File(NamedTuple):
    """A block's file; of one that is damaged the size says how many bytes it holds, and nothing goes on from it."""

    path: Path
    key: bytes
    made_at: float
    payload_bytes: int
    start: int = -1
    parent: bytes = b""


def _files(folder: Path) -> Iterator[_File]:
    files = FileSystem()
    for path in folder.iterdir():
        if path.suffix in {SUFFIX, UNFINISHED}:
            with contextlib.suppress(FileNotFoundError, ValueError):  # it has just gone, or is none of ours
                head, file_bytes, made_at = files.head(path, HEAD_BYTES)
                file = _File(path, bytes.fromhex(path.stem), made_at, file_bytes)
                with contextlib.suppress(BlockDamagedError):
                    header = decode_head(head)
                    file = file._replace(payload_bytes=header.payload_bytes, start=header.start, parent=header.parent)
                yield file


def _delete_where(folder: Path, is_chosen: Callable[[_File], bool]) -> Removed:
    """Delete the chosen files, but for those that one which stays goes on from. Raises OSError."""
    removed, needed = Removed(), set()
    for file in sorted(_files(folder), key=lambda file: -file.start):
        if is_chosen(file) and file.key not in needed:
            file.path.unlink(missing_ok=True)
            removed += Removed(1, file.payload_bytes)
        else:
            needed.add(file.parent)
    return removed


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """Read every block of a subfolder; yield those that are not what was written, and why, after deleting them."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            header, _ = decode(path.read_bytes())
            if key_of(path) != header.key or not header.root.hex().startswith(folder.name):
                raise BlockDamagedError("it is another block than its name says")  # noqa: TRY301  as for any other damage
        except FileNotFoundError:
            continue
        except (OSError, BlockDamagedError) as error:
            path.unlink(missing_ok=True)
            yield path, str(error)


def notes(folder: Path) -> list[Note]:
    """Return what was said about the last requests to all models, oldest first."""
    found: list[Note] = []
    for each in folder.glob("*/"):
        with contextlib.suppress(sqlite3.Error):
            found += read_notes(each)
    return sorted(found, key=lambda note: note.time_s)
