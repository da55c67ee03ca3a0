"""What llama.cpp would reserve for models of any size: files of a header and a hole, loaded without allocating (`no_alloc`)."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import llama_cpp as lib
from tiny_models import gpt2_bytes

_LOG: list[str] = []


@lib.llama_log_callback
def _write(_level: int, text: bytes, _user_data: object) -> None:
    _LOG.append(text.decode("utf-8", "replace"))


def write_shape(
    path: Path,
    *,
    embedding: int,
    heads: int,
    kv_heads: int,
    head: int,
    feed_forward: int,
    vocabulary: int,
    experts: int = 0,
    experts_used: int = 0,
    layers: int = 2,
) -> Path:
    """Write the header of a llama, or with experts of a qwen3moe, of F16 weights; the weights are a hole."""
    architecture = "qwen3moe" if experts else "llama"
    metadata = {
        "context_length": 1 << 17,
        "embedding_length": embedding,
        "block_count": layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
    }
    if experts:
        metadata |= {"expert_count": experts, "expert_used_count": experts_used}
        metadata["expert_feed_forward_length"] = feed_forward
    shapes = {"token_embd": (embedding, vocabulary), "output": (embedding, vocabulary), "output_norm": (embedding,)}
    for layer in range(layers):
        own = {
            "attn_norm": (embedding,),
            "ffn_norm": (embedding,),
            "attn_q": (embedding, heads * head),
            "attn_k": (embedding, kv_heads * head),
            "attn_v": (embedding, kv_heads * head),
            "attn_output": (heads * head, embedding),
        }
        many, suffix = ((experts,), "_exps") if experts else ((), "")
        own |= {f"ffn_{name}{suffix}": (embedding, feed_forward, *many) for name in ("gate", "up")}
        own[f"ffn_down{suffix}"] = (feed_forward, embedding, *many)
        if experts:
            own |= {"ffn_gate_inp": (embedding, experts), "attn_q_norm": (head,), "attn_k_norm": (head,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return _write_hollow(path, architecture, metadata, shapes, vocabulary)


def compute_mib(path: Path, choices: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return the compute buffers that llama.cpp would reserve on the CPU, in MiB with two decimals: for cells, sequences, rows of a batch."""
    lib.llama_log_set(_write, None)
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    assert model, "".join(_LOG)[-500:]
    found = [_reserved_mib(model, *choice) for choice in choices]
    lib.llama_model_free(model)
    return found


def _reserved_mib(model: int, cells: int, sequences: int, rows: int) -> float:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_outputs_max = cells, sequences, sequences
    params.n_batch = params.n_ubatch = rows
    params.kv_unified = True
    _LOG.clear()
    context = lib.llama_init_from_model(model, params)
    assert context, "".join(_LOG)[-500:]
    lib.llama_free(context)
    return sum(map(float, re.findall(r"compute buffer size = *([\d.]+) MiB", "".join(_LOG))))


def _write_hollow(
    path: Path, architecture: str, metadata: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], vocabulary: int
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*gpt2_bytes(), *(f"<{number}>" for number in range(vocabulary - 256))])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * vocabulary)
    writer.add_token_merges(["ÿ ÿ"])
    hole = 0
    for name, shape in shapes.items():
        kind = np.dtype(np.float32 if len(shape) == 1 or "gate_inp" in name else np.float16)
        size = math.prod(shape) * kind.itemsize
        writer.add_tensor_info(f"{name}.weight", shape[::-1], kind, size)
        hole += -(-size // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + hole)
    return path
