"""Splits GGUF files as gguf-split does: the metadata stays in the first part, the tensors go along in their order."""

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import gguf

ALIGNMENT = 32


def split_gguf(
    source: Path,
    prefix: Path,
    count: int,
    *,
    empty_first: bool = False,
    numbers: Callable[[int], int] = lambda number: number,
    tensors_said: int | None = None,
) -> tuple[Path, ...]:
    """Write `source` in `count` parts, called PREFIX-00001-of-0000N.gguf and so on; return them, the first one first.

    `numbers` and `tensors_said` put something else into the metadata than what is so.
    """
    reader = gguf.GGUFReader(source)
    data = source.read_bytes()
    tensors = reader.tensors
    entries = int(reader.fields["GGUF.kv_count"].parts[0][0])
    metadata = data[24 : int(tensors[0].field.offset)]
    filled = count - 1 if empty_first else count
    cuts = [0] * (count - filled) + [len(tensors) * number // filled for number in range(filled + 1)]
    paths = []
    for number, (start, end) in enumerate(pairwise(cuts)):
        own = (entries, metadata) if number == 0 else (0, b"")
        said = len(tensors) if tensors_said is None else tensors_said
        split = _entry("split.no", 2, struct.pack("<H", numbers(number)))
        split += _entry("split.count", 2, struct.pack("<H", count))
        split += _entry("split.tensors.count", 5, struct.pack("<i", said))
        path = prefix.with_name(f"{prefix.name}-{number + 1:05}-of-{count:05}.gguf")
        path.write_bytes(_part(data, tensors[start:end], own[0] + 3, own[1] + split))
        paths.append(path)
    return tuple(paths)


def _entry(key: str, value_type: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", value_type) + value


def _part(data: bytes, tensors: list[gguf.ReaderTensor], entries: int, metadata: bytes) -> bytes:
    infos, bodies, offset = [], [], 0
    for tensor in tensors:
        body = data[tensor.data_offset : tensor.data_offset + tensor.n_bytes]
        body += bytes(-len(body) % ALIGNMENT)
        shape = struct.pack(f"<{len(tensor.shape)}Q", *map(int, tensor.shape))
        name = tensor.name.encode()
        infos.append(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape)) + shape)
        infos.append(struct.pack("<IQ", tensor.tensor_type, offset))
        bodies.append(body)
        offset += len(body)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), entries) + metadata + b"".join(infos)
    return header + bytes(-len(header) % ALIGNMENT) + b"".join(bodies)
