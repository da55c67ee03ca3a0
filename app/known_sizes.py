"""What is known of models' sizes: to read the header of a large vocabulary takes a fifth of a second, which no load need wait for twice."""

import contextlib
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from pinyon.app.fit import sizes_here
from pinyon.models.disk import private_folder, write_atomically
from pinyon.models.memory.sizes import ModelSizes
from pinyon.models.model_record import FileIdentity, Record
from pinyon.models.split_files import headers_of


class _Known(msgspec.Struct, frozen=True):
    """`made_by` names the code that made it, and for which CPU."""

    made_by: str
    files: tuple[FileIdentity, ...]
    sizes: ModelSizes


def sizes_of(record: Record, folder: Path) -> ModelSizes:
    """Return the sizes of a model whose files are as its record says; they are kept in the folder. Raises ModelError."""
    made_by = f"{version('pinyon')} {platform.machine()}"
    place = folder / f"{hashlib.sha256(os.fsencode(record.path)).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode(place.read_bytes(), type=_Known)
        if (known.made_by, known.files) == (made_by, record.identities):
            return known.sizes
    sizes = sizes_here(headers_of(record.path))
    with contextlib.suppress(OSError):
        private_folder(folder)
        write_atomically(place, msgspec.json.encode(_Known(made_by, record.identities, sizes)))
    return sizes
