"""Writes GGUF files from a description, right or wrong: every field can be given a value that no writer would.

A changed description is serialised anew, so one lie does not shift everything behind it as an edit in place would.
"""

import math
import struct
from dataclasses import dataclass, replace
from typing import Self

from pinyon.models.ggml_types import GGML_TYPES
from pinyon.models.gguf_reader import ValueType

FORMATS = {
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


@dataclass(frozen=True)
class Text:
    """A string; `length` overrides the one written before it."""

    data: str | bytes
    length: int | None = None

    def encode(self) -> bytes:
        data = self.data.encode() if isinstance(self.data, str) else self.data
        return struct.pack("<Q", len(data) if self.length is None else self.length) + data


@dataclass(frozen=True)
class Array:
    element_type: int
    items: tuple
    count: int | None = None

    def encode(self) -> bytes:
        count = len(self.items) if self.count is None else self.count
        body = b"".join(encode_value(self.element_type, item) for item in self.items)
        return struct.pack("<IQ", self.element_type, count) + body


def encode_value(value_type: int, value) -> bytes:
    if isinstance(value, Text | Array):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return Text(value).encode()
    return struct.pack("<" + FORMATS[ValueType(value_type)], value)


@dataclass(frozen=True)
class Tensor:
    name: str | bytes | Text
    shape: tuple[int, ...] = (32, 2)
    type: int = 0
    offset: int | None = None
    dimensions: int | None = None

    @property
    def size_bytes(self) -> int:
        kind = GGML_TYPES.get(self.type)
        elements = math.prod(self.shape)
        if kind is None or not 0 < elements < 1 << 20:
            return 128
        return elements // kind.block_elements * kind.block_bytes

    def encode(self, offset: int) -> bytes:
        name = self.name if isinstance(self.name, Text) else Text(self.name)
        dimensions = len(self.shape) if self.dimensions is None else self.dimensions
        shape = b"".join(struct.pack("<Q", size % (1 << 64)) for size in self.shape)
        return name.encode() + struct.pack("<I", dimensions) + shape + struct.pack("<IQ", self.type, offset)


@dataclass(frozen=True)
class Gguf:
    metadata: tuple[tuple[str | bytes | Text, int, object], ...]
    tensors: tuple[Tensor, ...]
    version: int = 3
    alignment: int = 32
    metadata_count: int | None = None
    tensor_count: int | None = None

    def with_value(self, key, value_type: int, value) -> Self:
        """With `key` set to a value, at its place or at the end."""
        entry = (key, value_type, value)
        if any(known == key for known, _, _ in self.metadata):
            return replace(self, metadata=tuple(entry if old[0] == key else old for old in self.metadata))
        return replace(self, metadata=(*self.metadata, entry))

    def without(self, key: str) -> Self:
        return replace(self, metadata=tuple(entry for entry in self.metadata if entry[0] != key))

    def with_tensor(self, **changes) -> Self:
        """With the second tensor changed."""
        first, second, *others = self.tensors
        return replace(self, tensors=(first, replace(second, **changes), *others))

    def header(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.metadata) if self.metadata_count is None else self.metadata_count,
        )
        parts = [b"GGUF", struct.pack("<IQQ", self.version, *counts)]
        for key, value_type, value in self.metadata:
            name = key if isinstance(key, Text) else Text(key)
            parts += [name.encode(), struct.pack("<I", value_type), encode_value(value_type, value)]
        offset = 0
        for tensor in self.tensors:
            parts.append(tensor.encode(offset if tensor.offset is None else tensor.offset))
            offset += padded(tensor.size_bytes, self.alignment)
        return b"".join(parts)

    def encode(self) -> bytes:
        header = self.header()
        data_bytes = sum(padded(tensor.size_bytes, self.alignment) for tensor in self.tensors)
        return header.ljust(padded(len(header), self.alignment), b"\0") + bytes(data_bytes)


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def tiny(architecture: str = "llama", tokens: int = 5) -> Gguf:
    """A header as a small model has it, with all the kinds of values; too little of a model to run."""
    u32, f32, text = ValueType.UINT32, ValueType.FLOAT32, ValueType.STRING
    vocabulary = tuple(f"<{number}>" for number in range(tokens))
    metadata = (
        ("general.architecture", text, architecture),
        ("general.type", text, "model"),
        ("general.name", text, "Tiny Model"),
        ("general.alignment", u32, 32),
        ("general.file_type", u32, 15),
        (f"{architecture}.block_count", u32, 2),
        (f"{architecture}.context_length", u32, 256),
        (f"{architecture}.embedding_length", u32, 64),
        (f"{architecture}.attention.head_count", u32, 4),
        (f"{architecture}.attention.head_count_kv", ValueType.ARRAY, Array(u32, (2, 4))),
        (f"{architecture}.rope.freq_base", f32, 10000.0),
        ("tokenizer.ggml.add_bos_token", ValueType.BOOL, 1),
        ("tokenizer.ggml.model", text, "gpt2"),
        ("tokenizer.ggml.tokens", ValueType.ARRAY, Array(text, vocabulary)),
        ("tokenizer.ggml.scores", ValueType.ARRAY, Array(f32, (0.5,) * tokens)),
        ("tokenizer.ggml.token_type", ValueType.ARRAY, Array(ValueType.INT32, (1,) * tokens)),
        ("tokenizer.chat_template", text, "{{ messages[0].content }}"),
    )
    tensors = (
        Tensor("token_embd.weight", (64, tokens)),
        Tensor("blk.0.attn_q.weight", (256, 2), type=12),
        Tensor("blk.0.attn_norm.weight", (64,)),
        Tensor("output_norm.weight", (64,)),
    )
    return Gguf(metadata, tensors)
