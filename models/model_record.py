"""What is kept about one model on this machine, and the JSON file that keeps it.

Paths are stored as file URIs: names on Linux are bytes, and JSON can only hold those that are UTF-8.
"""

import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote_to_bytes

import msgspec

from pinyon.models.catalog import slug
from pinyon.models.disk import printable, write_atomically
from pinyon.models.errors import StoreError
from pinyon.models.gguf_header import file_status

_URI_PREFIX = "file:///" if os.name == "nt" else "file://"


class Source(StrEnum):
    CATALOGUE = "catalogue"  # fetched by Pinyon, which may delete the file
    HUB = "hub"  # pulled from the hub: Pinyon may delete what lies in its own folder
    ADDED = "added"  # the user's file, used where it lies
    PATH = "path"  # given by path for one run, not recorded


class FileIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was when its header passed the checks; another one at the path differs in some field."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileIdentity":
        """The file that is at `path` now. Raises ModelNotFoundError, ModelFileError."""
        status = file_status(path)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on this machine. `sha256` is set where the whole file was verified against it.

    Of a split model `path` is the first part, which llama.cpp loads, and `parts` are the others, each with its identity in
    `parts_checked`; `parts_sha256`, the first part's among them, is what `sha256` is to a single file.
    """

    name: str
    aliases: tuple[str, ...]
    path: Path
    source: Source
    added_at: datetime
    sha256: str | None
    checked: FileIdentity
    parts: tuple[Path, ...] = ()
    parts_checked: tuple[FileIdentity, ...] = ()
    parts_sha256: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, the first part first."""
        return (self.path, *self.parts)

    @property
    def identities(self) -> tuple[FileIdentity, ...]:
        """What each of `paths` was when it passed the checks."""
        return (self.checked, *self.parts_checked)

    @property
    def pull_name(self) -> str | None:
        """By what `pinyon pull` fetches it again: a hub model by the alias with its repo; None for a file of the user's."""
        if self.source in {Source.ADDED, Source.PATH}:
            return None
        return next((alias for alias in self.aliases if "/" in alias), self.name)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.identities)


def new_record(
    name: str,
    path: Path,
    source: Source,
    checked: FileIdentity,
    parts: tuple[Path, ...] = (),
    parts_checked: tuple[FileIdentity, ...] = (),
) -> Record:
    """A record without aliases and digests, as of now."""
    return Record(name, (), path, source, datetime.now(UTC), None, checked, parts, parts_checked)


def read_record(file: Path) -> Record:
    """Raises StoreError that says why the record cannot be used."""
    try:
        record = _DECODER.decode(file.read_bytes())
    except OSError as error:
        raise StoreError(f"{printable(file)} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(_damaged(file, str(error))) from None
    if slug(record.name) != file.stem:
        raise StoreError(_damaged(file, f"it names the model {record.name}"))
    return record


def write_record(file: Path, record: Record) -> None:
    """Raises StoreError when the folder takes no file."""
    try:
        write_atomically(file, msgspec.json.format(_ENCODER.encode(record)))
    except OSError as error:
        raise StoreError(f"{printable(file)} cannot be written: {error.strerror}") from None


def _damaged(file: Path, reason: str) -> str:
    return f"{printable(file)} is damaged: {printable(reason)}; `pinyon rm {printable(file.stem)}` clears it"


def _encode_path(value: object) -> str:
    if isinstance(value, Path):
        return value.as_uri()
    raise NotImplementedError(f"no JSON for {type(value)}")


def _decode_path(wanted: type, value: object) -> Path:
    if wanted is not Path or not isinstance(value, str) or not value.startswith(_URI_PREFIX):
        raise ValueError(f"a path must start with {_URI_PREFIX}")
    path = Path(os.fsdecode(unquote_to_bytes(value.removeprefix(_URI_PREFIX))))
    if not path.is_absolute():
        raise ValueError("a path must be absolute")
    return path


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_path)
_DECODER = msgspec.json.Decoder(Record, dec_hook=_decode_path)
