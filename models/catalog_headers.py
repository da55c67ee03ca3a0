"""The headers of the catalogue's models, which the package carries: what is not here yet can be judged without asking anybody.

Their metadata is what memory, speed and quality need: the architecture's, `general.*`, and how long the vocabularies are.
"""

import functools
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final, cast

import msgspec

from pinyon.models.catalog import CatalogEntry
from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import ArrayInfo, TensorInfo, Value, ValueType

FILE_NAME: Final = "catalog_headers.json"
_VOCABULARIES: Final = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")


class _Array(msgspec.Struct):
    element_type: ValueType
    count: int
    values: tuple[int | float, ...] | None
    spells_bytes: bool


class _Tensor(msgspec.Struct, array_like=True):
    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class _Header(msgspec.Struct):
    version: int
    metadata: dict[str, str | int | float | bool | _Array]
    tensors: list[_Tensor]
    data_offset: int
    alignment: int
    file_bytes: int


def catalog_header(entry: CatalogEntry) -> GgufHeader:
    """Return the header of a model of the catalogue, less what nobody judges it by."""
    stored = _stored()[entry.name]
    return GgufHeader(
        stored.version,
        MappingProxyType({key: _value(each) for key, each in stored.metadata.items()}),
        tuple(_tensor(each) for each in stored.tensors),
        stored.data_offset,
        stored.alignment,
        stored.file_bytes,
    )


def without_texts(header: GgufHeader) -> GgufHeader:
    """Return a header with the metadata that is stored: no template, no special tokens."""
    kept = {key: value for key, value in header.metadata.items() if _is_kept(key, header)}
    return GgufHeader(
        header.version,
        MappingProxyType(kept),
        header.tensors,
        header.data_offset,
        header.alignment,
        header.file_bytes,
    )


def encoded(headers: Mapping[str, GgufHeader]) -> bytes:
    """Return headers by the names of their models as the file has them: for whoever adds a model to the catalogue."""
    stored = {
        name: _Header(
            header.version,
            {key: _storable(value) for key, value in without_texts(header).metadata.items()},
            [_Tensor(each.name, each.type.name, each.shape, each.offset, each.size_bytes) for each in header.tensors],
            header.data_offset,
            header.alignment,
            header.file_bytes,
        )
        for name, header in headers.items()
    }
    return msgspec.json.encode(stored) + b"\n"


def _is_kept(key: str, header: GgufHeader) -> bool:
    return key.startswith(("general.", f"{header.architecture}.")) or key in _VOCABULARIES


@functools.cache
def _stored() -> dict[str, _Header]:
    return msgspec.json.decode(files(__package__).joinpath(FILE_NAME).read_bytes(), type=dict[str, _Header])


def _storable(value: Value) -> str | int | float | bool | _Array:
    if isinstance(value, ArrayInfo):
        return _Array(value.element_type, value.count, value.values, value.spells_bytes)
    return value


def _value(stored: str | float | bool | _Array) -> Value:
    if isinstance(stored, _Array):
        # JSON tells 1 from 1.0, so the elements are of the one type that the file has
        values = cast("tuple[int, ...] | tuple[float, ...] | None", stored.values)
        return ArrayInfo(stored.element_type, stored.count, values, stored.spells_bytes)
    return stored


def _tensor(stored: _Tensor) -> TensorInfo:
    return TensorInfo(stored.name, stored.shape, TYPES_BY_NAME[stored.type], stored.offset, stored.size_bytes)
