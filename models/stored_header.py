"""A header as it is kept on disk: what memory, speed and quality are judged by, without texts of the vocabulary.

Its metadata is the architecture's, `general.*`, and how long the vocabularies are.
"""

from types import MappingProxyType
from typing import Final, Self, cast

import msgspec

from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import ArrayInfo, TensorInfo, Value, ValueType

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


class StoredHeader(msgspec.Struct):
    """A header without texts, in types that JSON has."""

    version: int
    metadata: dict[str, str | int | float | bool | _Array]
    tensors: list[_Tensor]
    data_offset: int
    alignment: int
    file_bytes: int

    @classmethod
    def of(cls, header: GgufHeader) -> Self:
        return cls(
            header.version,
            {key: _storable(value) for key, value in without_texts(header).metadata.items()},
            [_Tensor(each.name, each.type.name, each.shape, each.offset, each.size_bytes) for each in header.tensors],
            header.data_offset,
            header.alignment,
            header.file_bytes,
        )

    def header(self) -> GgufHeader:
        """Return the header less what nobody judges a model by. Raises KeyError for a type of weights that is not known."""
        return GgufHeader(
            self.version,
            MappingProxyType({key: _value(each) for key, each in self.metadata.items()}),
            tuple(_tensor(each) for each in self.tensors),
            self.data_offset,
            self.alignment,
            self.file_bytes,
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


def _is_kept(key: str, header: GgufHeader) -> bool:
    return key.startswith(("general.", f"{header.architecture}.")) or key in _VOCABULARIES


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
