"""The SHA-256 of a model's file, without reading gigabytes at each start: known files are told by their identity.

A split model has one digest of all its parts, over the digests of each. A path stands for all of them here, by the rule by
which llama.cpp finds the others when it loads the first (llama_split_path).
"""

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine.file_system import FileSystem

_READ_BYTES: Final = 4 << 20
_REMEMBERED: Final = 64
_FIRST_PART: Final = re.compile(r"(?P<prefix>.+)-00001-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

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
    """Return a file's device, inode, size and times, which are others once it was replaced or edited; of all its parts.

    That holds also where its time of the last change was set back: that of the last change of its status cannot be set.

    Raises:
        OSError: there is no such file.
    """
    every = (file.stat() for file in files_of(model))
    return "+".join(f"{one.st_dev}:{one.st_ino}:{one.st_size}:{one.st_mtime_ns}:{one.st_ctime_ns}" for one in every)


def files_of(model: Path) -> tuple[Path, ...]:
    """Return the files that are loaded with the one at a path, which comes first.

    Without a look inside: a file that is only named like a part, where all others are as well, brings these along.
    """
    name = _FIRST_PART.fullmatch(model.name)
    if name is None:
        return (model,)
    others = range(2, int(name["count"]) + 1)
    parts = [model.with_name(f"{name['prefix']}-{number:05}-of-{name['count']}.gguf") for number in others]
    return (model, *parts) if all(part.exists() for part in parts) else (model,)


def _read(memory: Path, files: FileSystem) -> _Known:
    try:
        return msgspec.msgpack.decode(files.read(memory), type=_Known)
    except (OSError, msgspec.DecodeError):
        return {}


def _digest(model: Path) -> bytes:
    digests = [_file_digest(file) for file in files_of(model)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.digest()
