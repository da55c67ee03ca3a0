"""Models to measure: a real llama of any size and weight type whose file is a header over a hole, so that it takes no disk.

All weights are zero, which no kernel is quicker for. Embeddings and norms are one: activations of zero would be quantised by a
short cut. The layout is that of the GGUF specification, version 3.
"""

import math
import struct
from pathlib import Path
from typing import Final, NamedTuple

from pinyon.engine.probe_messages import WeightType

HEAD_WIDTH: Final = 64
TOKENS: Final = 32
CONTEXT: Final = 256

_F32 = WeightType(0, 1, 4)
_ALIGNMENT: Final = 32
_U32, _F32_VALUE, _STRING = 4, 6, 8
"""Types of metadata."""


class Shape(NamedTuple):
    """`width` is a multiple of 256, or 64, 128 or 192; it and `feed_forward` are multiples of the weight type's block."""

    layers: int
    width: int
    feed_forward: int

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @property
    def kv_heads(self) -> int:
        """A quarter of the heads where that can be, as in most models of today."""
        return max(1, self.heads // 4)

    @property
    def layer_weights(self) -> int:
        """Of the matrices."""
        return sum(map(math.prod, self.matrices().values()))

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return row length and number of rows for each matrix of a layer."""
        kv_width = self.kv_heads * HEAD_WIDTH
        return {
            "attn_q": (self.width, self.width),
            "attn_k": (self.width, kv_width),
            "attn_v": (self.width, kv_width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.width, self.feed_forward),
            "ffn_up": (self.width, self.feed_forward),
            "ffn_down": (self.feed_forward, self.width),
        }


def write_hollow_model(path: Path, shape: Shape, weights: WeightType) -> None:
    """Write a file that llama.cpp loads. Raises OSError."""
    tensors: list[tuple[str, tuple[int, ...], WeightType]]
    tensors = [("token_embd.weight", (shape.width, TOKENS), _F32), ("output_norm.weight", (shape.width,), _F32)]
    for layer in range(shape.layers):
        tensors += [(f"blk.{layer}.{norm}.weight", (shape.width,), _F32) for norm in ("attn_norm", "ffn_norm")]
        tensors += [(f"blk.{layer}.{name}.weight", size, weights) for name, size in shape.matrices().items()]
    metadata = _metadata(shape)
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata)), *metadata]
    ones: list[tuple[int, int]] = []
    end = 0
    for name, size, kind in tensors:
        header.append(_text(name) + struct.pack(f"<I{len(size)}QIQ", len(size), *size, kind.number, end))
        elements = math.prod(size)
        if kind is _F32:
            ones.append((end, elements))
        end = _aligned(end + elements // kind.block_elements * kind.block_bytes)
    with path.open("wb") as file:
        file.write(b"".join(header))
        start = _aligned(file.tell())
        for offset, count in ones:
            file.seek(start + offset)
            file.write(struct.pack("<f", 1.0) * count)
        file.truncate(start + end)


def _metadata(shape: Shape) -> list[bytes]:
    counts = {
        "context_length": CONTEXT,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "vocab_size": TOKENS,
    }
    return [
        _text("general.architecture") + struct.pack("<I", _STRING) + _text("llama"),
        _text("tokenizer.ggml.model") + struct.pack("<I", _STRING) + _text("none"),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32_VALUE, 1e-5),
        *(_text(f"llama.{key}") + struct.pack("<II", _U32, value) for key, value in counts.items()),
    ]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
