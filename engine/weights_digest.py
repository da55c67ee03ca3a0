"""The SHA-256 of a model's file, without reading gigabytes at each start: known files are told by their identity."""

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine.file_system import FileSystem

_READ_BYTES: Final = 4 << 20
_REMEMBERED: Final = 64

MEMORY_NAME: Final = "weights"
"""What the file of known digests is called in the folder of KV."""

_Known = dict[str, bytes]


def weights_digest(model: Path, identity: str, memory: Path, files: FileSystem) -> bytes:
    """Return the digest of the bytes that a model had when it had this identity, from the file `memory` if that knows it.

    Raises:
        OSError: the model cannot be read, or is another one now.
    """
    known = _read(memory, files)
    if identity in known:
        return known[identity]
    digest = _digest(model)
    if file_identity(model) != identity:
        raise OSError(f"{model} has changed since it was loaded")
    newest = [*known.items(), (identity, digest)][-_REMEMBERED:]
    with contextlib.suppress(OSError):
        unfinished = memory.with_suffix(".new")
        files.write(unfinished, (msgspec.msgpack.encode(dict(newest)),))
        files.replace(unfinished, memory)
    return digest


def known_digest(model: Path, memory: Path) -> str:
    """Return the digest in hex if `memory` has it, without reading the model; empty where it is unknown."""
    try:
        identity = file_identity(model)
    except OSError:
        return ""
    return _read(memory, FileSystem()).get(identity, b"").hex()


def file_identity(model: Path) -> str:
    """Return a file's device, inode, size and times, which are others once it was replaced or edited.

    That holds also where its time of the last change was set back: that of the last change of its status cannot be set.

    Raises:
        OSError: there is no such file.
    """
    status = model.stat()
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _read(memory: Path, files: FileSystem) -> _Known:
    try:
        return msgspec.msgpack.decode(files.read(memory), type=_Known)
    except (OSError, msgspec.DecodeError):
        return {}


def _digest(model: Path) -> bytes:
    digest = hashlib.sha256()
    with model.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.digest()
