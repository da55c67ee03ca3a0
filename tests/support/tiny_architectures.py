"""Tiny GGUF files, random weights, of architectures whose state is more than keys and values that can be cut into ranges.

The recurrent layers remember for tens of tokens, so that a lost or wrong state shows in the logits.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from tiny_models import EOS, VOCABULARY, _add_vocabulary

WIDTH, HEADS, KV_HEADS, CONTEXT, WINDOW = 64, 4, 2, 512, 24
HEAD_WIDTH = WIDTH // HEADS
FEED_FORWARD = 2 * WIDTH
STATE, CONVOLUTION, STEP_RANK = 8, 4, 4
INNER = 2 * WIDTH  # llama.cpp takes no other expansion
HYBRID_LAYERS = "mamba", "attention", "mamba"
WINDOWED_LAYERS = [True, False, True]


def write_tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """Write a mamba of two layers: one state a sequence, and no cells."""
    writer = _writer(path, "mamba", layers=2, heads=0, feed_forward=0)
    _add_state_sizes(writer)
    tensors = _Tensors(writer, seed)
    for layer in range(2):
        tensors.add_ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        tensors.add_mamba_layer(layer)
    return _finish(writer, path)


def write_tiny_jamba(path: Path, *, seed: int = 0) -> Path:
    """Write a jamba, a hybrid: an attention layer between two mamba layers."""
    writer = _writer(path, "jamba", layers=len(HYBRID_LAYERS), heads=HEADS, feed_forward=FEED_FORWARD)
    writer.add_head_count_kv([KV_HEADS if kind == "attention" else 0 for kind in HYBRID_LAYERS])
    _add_state_sizes(writer)
    tensors = _Tensors(writer, seed)
    for layer, kind in enumerate(HYBRID_LAYERS):
        if kind == "attention":
            tensors.add_attention(layer)
        else:
            tensors.add_mamba_layer(layer)
            for name, width in ("dt", STEP_RANK), ("b", STATE), ("c", STATE):
                tensors.add_ones(f"blk.{layer}.ssm_{name}_norm.weight", width)
        tensors.add_ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        tensors.add_feed_forward(layer)
    return _finish(writer, path)


def write_tiny_gemma3(path: Path, *, window: int = WINDOW, seed: int = 0) -> Path:
    """Write a gemma3: the first and the last of three layers look `window` tokens back."""
    writer = _writer(path, "gemma3", layers=len(WINDOWED_LAYERS), heads=HEADS, feed_forward=FEED_FORWARD)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern(WINDOWED_LAYERS)
    writer.add_rope_freq_base(1e6)
    tensors = _Tensors(writer, seed)
    for layer in range(len(WINDOWED_LAYERS)):
        tensors.add_attention(layer)
        tensors.add_feed_forward(layer)
        for name in "attn", "post_attention", "post_ffw":
            tensors.add_ones(f"blk.{layer}.{name}_norm.weight", WIDTH)
        for name in "q", "k":
            tensors.add_ones(f"blk.{layer}.attn_{name}_norm.weight", HEAD_WIDTH)
    return _finish(writer, path)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "mamba": write_tiny_mamba,
    "jamba": write_tiny_jamba,
    "gemma3": write_tiny_gemma3,
}


class _Tensors:
    """Adds random tensors to a file, beginning with those outside all layers."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)
        self._add("token_embd.weight", VOCABULARY, WIDTH)
        self._add("output.weight", VOCABULARY, WIDTH)
        self.add_ones("output_norm.weight", WIDTH)

    def _add(self, name: str, *shape: int, scale: float = 0.3) -> None:
        self._add_values(name, scale * self._random.normal(size=shape))

    def _add_values(self, name: str, values: np.ndarray) -> None:
        self._writer.add_tensor(name, values.astype(np.float32))

    def add_ones(self, name: str, width: int) -> None:
        self._add_values(name, np.ones(width))

    def add_mamba_layer(self, layer: int) -> None:
        prefix = f"blk.{layer}.ssm"
        self._add(f"{prefix}_in.weight", 2 * INNER, WIDTH)
        self._add(f"{prefix}_conv1d.weight", INNER, CONVOLUTION)
        self._add(f"{prefix}_conv1d.bias", INNER)
        self._add(f"{prefix}_x.weight", STEP_RANK + 2 * STATE, INNER)
        self._add(f"{prefix}_dt.weight", INNER, STEP_RANK, scale=0.1)
        # A state decays by exp(-softplus(dt) * -a) a token: steps near 0.01 make it last.
        self._add_values(f"{prefix}_dt.bias", self._random.uniform(-6, -4, INNER))
        self._add_values(f"{prefix}_a", np.tile(-np.arange(1.0, STATE + 1), (INNER, 1)))
        self.add_ones(f"{prefix}_d", INNER)
        self._add(f"{prefix}_out.weight", WIDTH, INNER)

    def add_attention(self, layer: int) -> None:
        prefix = f"blk.{layer}.attn"
        self._add(f"{prefix}_q.weight", HEADS * HEAD_WIDTH, WIDTH)
        self._add(f"{prefix}_k.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        self._add(f"{prefix}_v.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        self._add(f"{prefix}_output.weight", WIDTH, HEADS * HEAD_WIDTH)

    def add_feed_forward(self, layer: int) -> None:
        prefix = f"blk.{layer}.ffn"
        self.add_ones(f"{prefix}_norm.weight", WIDTH)
        self._add(f"{prefix}_gate.weight", FEED_FORWARD, WIDTH)
        self._add(f"{prefix}_up.weight", FEED_FORWARD, WIDTH)
        self._add(f"{prefix}_down.weight", WIDTH, FEED_FORWARD)


def _writer(path: Path, architecture: str, *, layers: int, heads: int, feed_forward: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_vocabulary(writer, template=None, add_bos=False, eos=EOS, changed={})
    return writer


def _add_state_sizes(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(STEP_RANK)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
