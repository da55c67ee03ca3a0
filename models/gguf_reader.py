"""Reads the two tables of a GGUF header, metadata and tensors, from bytes that nobody has vouched for.

A count or a length is compared with the bytes that the file has left before it is acted on, so a claim of 2^60 entries
costs nothing. This file owns the layout (gguf.h of llama.cpp, versions 2 and 3); whether the values make sense together
is header_check's subject.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pinyon.models.disk import printable
from pinyon.models.errors import GgufFormatError, HeaderIncompleteError
from pinyon.models.ggml_types import GGML_TYPES, REMOVED_TYPES, GgmlType

# The largest vocabularies in use need under 20 MiB; a header past this is an attack or not a model.
MAX_HEADER_BYTES = 64 << 20
MAX_KEY_BYTES = 65_535  # GGUF specification
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME, less the NUL
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_TOKENS = 1 << 20  # four times the largest vocabulary in use
MAX_KEPT_ELEMENTS = 4096  # enough for per-layer arrays; vocabularies are stepped over

# An entry cannot be shorter than this: lengths, a one-letter name, one value or dimension.
MIN_METADATA_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

TOKENS_KEY = "tokenizer.ggml.tokens"

_U64 = struct.Struct("<Q")


class ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def is_integer(self) -> bool:
        return self not in _NOT_INTEGERS


_NOT_INTEGERS = {ValueType.FLOAT32, ValueType.FLOAT64, ValueType.BOOL, ValueType.STRING, ValueType.ARRAY}
_NUMBER_FORMATS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array in the metadata; `values` is None for strings and where there are more than MAX_KEPT_ELEMENTS.

    `spells_bytes` is set for a vocabulary that has a token for each of the 256 bytes.
    """

    element_type: ValueType
    count: int
    values: tuple[int, ...] | tuple[float, ...] | None
    spells_bytes: bool = False

    @property
    def integers(self) -> tuple[int, ...] | None:
        """The values as whole numbers, truth as 0 and 1; None where they are not kept, or floats, which may be infinite."""
        if self.values is None or self.element_type in {ValueType.FLOAT32, ValueType.FLOAT64}:
            return None
        return tuple(map(int, self.values))


Value: TypeAlias = str | int | float | bool | ArrayInfo


@dataclass(frozen=True, slots=True)
class Entry:
    """A metadata value with the type that the file stores it as."""

    value_type: ValueType
    value: Value


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` has 1 to 4 sizes, the row length first; `offset` counts bytes from the header's data_offset."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    size_bytes: int


def quoted(name: str) -> str:
    """A name out of a file, safe to print and short enough for a message."""
    return f"'{printable(name[:60])}{'…' if len(name) > 60 else ''}'"


class Cursor:
    """A position in the first bytes of a file of `file_bytes` bytes."""

    def __init__(self, data: bytes, file_bytes: int) -> None:
        self.data = data[:file_bytes]
        self.file_bytes = file_bytes
        self.position = 0

    def advance(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they start.

        Raises GgufFormatError when the file is shorter, HeaderIncompleteError when only `data` is.
        """
        start = self.position
        end = start + size
        if end > self.file_bytes:
            raise GgufFormatError(
                f"truncated: {what} needs {size:,} bytes at offset {start:,}, but the file has {self.file_bytes:,}"
            )
        if end > MAX_HEADER_BYTES:
            raise GgufFormatError(f"the header goes on past {MAX_HEADER_BYTES:,} bytes with {what}: not a model")
        if end > len(self.data):
            raise HeaderIncompleteError(end)
        self.position = end
        return start

    def numbers(self, number_format: str, count: int, what: str) -> tuple[int, ...] | tuple[float, ...]:
        layout = struct.Struct(f"<{count}{number_format}")
        return layout.unpack_from(self.data, self.advance(layout.size, what))

    def u32(self, what: str) -> int:
        return int.from_bytes(self._bytes(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self._bytes(8, what), "little")

    def text(self, what: str) -> str:
        return self._decoded(self.u64(f"the length of {what}"), what)

    def name(self, what: str, max_bytes: int) -> str:
        """A string that names something: 1 to `max_bytes` bytes, without control characters."""
        size = self.u64(f"the length of {what}")
        if not 1 <= size <= max_bytes:
            raise GgufFormatError(f"the length of {what} is {size:,} bytes; 1 to {max_bytes:,} are possible")
        name = self._decoded(size, what)
        if not name.isprintable():
            raise GgufFormatError(f"{what} holds control characters: {quoted(name)}")
        return name

    def count(self, min_entry_bytes: int, what: str) -> int:
        """A number of entries, refused when the rest of the file could not hold that many."""
        count = self.u64(f"the number of {what}")
        left = self.file_bytes - self.position
        if count * min_entry_bytes > left:
            raise GgufFormatError(
                f"truncated or forged: the header claims {count:,} {what}, but only {left:,} bytes follow"
            )
        return count

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings without making them: vocabularies hold hundreds of thousands."""
        data, position = self.data, self.position
        last_length_at = len(data) - _U64.size
        length_at = _U64.unpack_from
        for _ in range(count):
            if position > last_length_at:
                position += _U64.size
                break
            position += 8 + length_at(data, position)[0]
        # A forged length ends the loop behind the bytes, and advance() says which of its two errors that is.
        self.advance(position - self.position, what)

    def check_tokens(self, count: int, what: str) -> bool:
        """Step over a vocabulary, which must not hold a token twice: llama.cpp aborts on that.

        Returns whether there is a token for each byte, spelt `<0x41>` or as the byte itself. As in llama.cpp, a token ends at its first NUL, and there may be any number of empty ones.
        """
        if count > MAX_TOKENS:
            raise GgufFormatError(f"{what} holds {count:,} tokens; up to {MAX_TOKENS:,} are possible")
        data, position, available = self.data, self.position, len(self.data)
        length_at = _U64.unpack_from
        seen: set[bytes] = set()
        for _ in range(count):
            start = position + 8
            position = start if start > available else start + length_at(data, position)[0]
            if position > available:
                break
            token = data[start:position]
            if 0 in token:
                token = token[: token.index(0)]
            if token in seen:
                raise GgufFormatError(f"{what} holds the token {quoted(token.decode(errors='replace'))} twice")
            if token:
                seen.add(token)
        self.advance(position - self.position, what)
        return all(b"<0x%02X>" % byte in seen or bytes([byte]) in seen for byte in range(256))

    def _bytes(self, size: int, what: str) -> bytes:
        start = self.advance(size, what)
        return self.data[start : start + size]

    def _decoded(self, size: int, what: str) -> str:
        try:
            return self._bytes(size, what).decode()
        except UnicodeDecodeError as error:
            raise GgufFormatError(f"{what} is not UTF-8: {error.reason} at byte {error.start:,} of {size:,}") from None


def read_metadata(cursor: Cursor, count: int) -> dict[str, Entry]:
    """The `count` metadata entries at the cursor. Raises GgufFormatError, HeaderIncompleteError."""
    entries: dict[str, Entry] = {}
    for number in range(1, count + 1):
        key = cursor.name(f"metadata key {number}", MAX_KEY_BYTES)
        if key in entries:
            raise GgufFormatError(f"the metadata key {quoted(key)} appears twice")
        value_type = _value_type(cursor, quoted(key))
        entries[key] = Entry(value_type, _read_value(cursor, value_type, key))
    return entries


def read_tensors(cursor: Cursor, count: int) -> tuple[TensorInfo, ...]:
    """The `count` rows of the tensor table at the cursor. Raises GgufFormatError, HeaderIncompleteError."""
    return tuple(_read_tensor(cursor, number) for number in range(1, count + 1))


def _value_type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(f"the type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        raise GgufFormatError(f"{what} has the value type {number}; GGUF knows 0 to {max(ValueType)}") from None


def _read_value(cursor: Cursor, value_type: ValueType, key: str) -> Value:
    if value_type is ValueType.ARRAY:
        return _read_array(cursor, key)
    what = quoted(key)
    if value_type is ValueType.STRING:
        return cursor.text(what)
    (number,) = cursor.numbers(_NUMBER_FORMATS[value_type], 1, what)
    if value_type is not ValueType.BOOL:
        return number
    if number not in (0, 1):
        raise GgufFormatError(f"{what} is a bool with the value {number}; only 0 and 1 are possible")
    return number == 1


def _read_array(cursor: Cursor, key: str) -> ArrayInfo:
    what = quoted(key)
    element_type = _value_type(cursor, f"the elements of {what}")
    if element_type is ValueType.ARRAY:
        raise GgufFormatError(f"{what} is an array of arrays, which no model needs")
    if element_type is ValueType.STRING:
        count = cursor.count(_U64.size, f"strings in {what}")
        if key == TOKENS_KEY:
            return ArrayInfo(element_type, count, values=None, spells_bytes=cursor.check_tokens(count, what))
        cursor.skip_strings(count, what)
        return ArrayInfo(element_type, count, values=None)
    number_format = _NUMBER_FORMATS[element_type]
    element_bytes = struct.calcsize(f"<{number_format}")
    count = cursor.count(element_bytes, f"numbers in {what}")
    if count > MAX_KEPT_ELEMENTS:
        cursor.advance(count * element_bytes, what)
        return ArrayInfo(element_type, count, values=None)
    return ArrayInfo(element_type, count, cursor.numbers(number_format, count, what))


def _read_tensor(cursor: Cursor, number: int) -> TensorInfo:
    name = cursor.name(f"the name of tensor {number}", MAX_TENSOR_NAME_BYTES)
    what = f"tensor {quoted(name)}"
    dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise GgufFormatError(f"{what} has {dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    # Signed in the format: a size of 2^63 or more reads as negative.
    shape = tuple(int(size) for size in cursor.numbers("q", dimensions, what))
    tensor_type = _tensor_type(cursor.u32(f"the type of {what}"), what)
    offset = cursor.u64(f"the offset of {what}")
    return TensorInfo(name, shape, tensor_type, offset, _size_bytes(shape, tensor_type, what))


def _tensor_type(number: int, what: str) -> GgmlType:
    if number in REMOVED_TYPES:
        raise GgufFormatError(
            f"{what} is stored as {REMOVED_TYPES[number]}, which llama.cpp no longer reads: get a newer file of this model"
        )
    if number not in GGML_TYPES:
        raise GgufFormatError(f"{what} has the unknown tensor type {number}")
    return GGML_TYPES[number]


def _size_bytes(shape: tuple[int, ...], tensor_type: GgmlType, what: str) -> int:
    if min(shape) < 1:
        raise GgufFormatError(f"{what} has the shape {shape}; every size must be at least 1")
    elements = math.prod(shape)
    if elements >= 1 << 63:
        raise GgufFormatError(f"{what} has the shape {shape}: that many elements overflow 64 bits")
    if shape[0] % tensor_type.block_elements:
        raise GgufFormatError(
            f"{what} has rows of {shape[0]:,} elements, but {tensor_type.name} is stored in blocks of"
            f" {tensor_type.block_elements}"
        )
    return elements // tensor_type.block_elements * tensor_type.block_bytes
