"""What the models folder asks of a disk: private folders, files that are whole or absent, paths that can be printed."""

import hashlib
import os
import tempfile
from pathlib import Path


def printable(text: str | Path) -> str:
    """`text` with everything that would break a line, a terminal or an encoder written as an escape.

    Names on Linux are bytes: those that are not UTF-8 arrive as lone surrogates, which no stream can encode.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))


def private_folder(path: Path) -> Path:
    """Create `path` and its missing parents, for the owner only (0700); return it. Raises OSError."""
    if not path.exists():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` (0600): after a crash it holds the old bytes or the new ones. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """The SHA-256 of the whole file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Make renames in `path` last through a power cut, where the system can. Raises OSError."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
