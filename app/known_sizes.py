"""What is known of models' headers and sizes: to read the header of a large vocabulary takes a fifth of a second, which nobody need wait
for twice.
"""

import contextlib
import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from pinyon.app.fit import sizes_here
from pinyon.models.disk import private_folder, write_atomically
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.memory.sizes import ModelSizes
from pinyon.models.model_record import FileIdentity, Record
from pinyon.models.split_files import headers_of
from pinyon.models.stored_header import StoredHeader, without_texts


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Headers without texts, the sizes that they make on this machine, and whether there is a chat template."""

    headers: tuple[GgufHeader, ...]
    sizes: ModelSizes
    can_chat: bool


class _Kept(msgspec.Struct, frozen=True):
    """`made_by` names the code that made it, and for which CPU."""

    made_by: str
    files: tuple[FileIdentity, ...]
    sizes: ModelSizes
    headers: tuple[StoredHeader, ...]
    can_chat: bool


def sizes_of(record: Record, folder: Path) -> ModelSizes:
    """Return the sizes of a model, as `known_model`."""
    return known_model(record, folder).sizes


def known_model(record: Record, folder: Path) -> KnownModel:
    """Return what is known of a model whose files are as its record says; it is kept in the folder. Raises ModelError."""
    made_by = f"{version('pinyon')} {platform.machine()}"
    place = folder / f"{hashlib.sha256(os.fsencode(record.path)).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
        kept = msgspec.json.decode(place.read_bytes(), type=_Kept)
        if (kept.made_by, kept.files) == (made_by, record.identities):
            return KnownModel(tuple(each.header() for each in kept.headers), kept.sizes, kept.can_chat)
    headers = headers_of(record.path)
    known = KnownModel(tuple(map(without_texts, headers)), sizes_here(headers), headers[0].chat_template is not None)
    with contextlib.suppress(OSError):
        private_folder(folder)
        stored = tuple(map(StoredHeader.of, headers))
        write_atomically(
            place, msgspec.json.encode(_Kept(made_by, record.identities, known.sizes, stored, known.can_chat))
        )
    return known
