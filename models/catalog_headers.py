"""The headers of the catalogue's models, which the package carries: what is not here yet can be judged without asking anybody."""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from pinyon.models.catalog import CatalogEntry
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.stored_header import StoredHeader

FILE_NAME: Final = "catalog_headers.json"


def catalog_header(entry: CatalogEntry) -> GgufHeader:
    """Return the header of a model of the catalogue, less what nobody judges it by."""
    return _stored()[entry.name].header()


def encoded(headers: Mapping[str, GgufHeader]) -> bytes:
    """Return headers by the names of their models as the file has them: for whoever adds a model to the catalogue."""
    return msgspec.json.encode({name: StoredHeader.of(header) for name, header in headers.items()}) + b"\n"


@functools.cache
def _stored() -> dict[str, StoredHeader]:
    return msgspec.json.decode(files(__package__).joinpath(FILE_NAME).read_bytes(), type=dict[str, StoredHeader])
