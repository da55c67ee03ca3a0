"""The folder of KV as commands see it, whether or not an engine is using it: one subfolder for each model and its settings."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pinyon.engine.block_disk import SUFFIX
from pinyon.engine.block_file import BlockDamagedError, decode
from pinyon.engine.cache_notes import Note, forget_notes, read_notes
from pinyon.engine.kv_folder import About, read_about, size_bytes


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


def clear(folder: Path, older_than_s: float) -> int:
    """Delete the blocks and the notes of a subfolder that are older; return how many bytes that freed.

    The folder itself stays: an engine may be using it, to which a missing file is a miss.
    """
    before, limit = size_bytes(folder), time.time() - older_than_s
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < limit:
                path.unlink()
    with contextlib.suppress(sqlite3.Error):
        forget_notes(folder, limit)
    return before - size_bytes(folder)


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """Read every block of a subfolder; yield those that are not what was written, and why, after deleting them."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            decode(path.read_bytes())
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
