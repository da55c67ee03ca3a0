"""Tiny GGUF files with random weights: real llama.cpp models that load in milliseconds."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 256
UNKNOWN, BOS, EOS, TURN_START, TURN_END, SPACE, TAG = range(7)
SPECIAL_TEXTS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "▁", "<tool>")
FIRST_BYTE = len(SPECIAL_TEXTS)
VOCABULARY = FIRST_BYTE + 256
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TYPE = gguf.TokenType
_SPECIAL_TYPES = (
    _TYPE.UNKNOWN,
    _TYPE.CONTROL,
    _TYPE.CONTROL,
    _TYPE.CONTROL,
    _TYPE.CONTROL,
    _TYPE.NORMAL,
    _TYPE.USER_DEFINED,
)


def write_tiny_llama(
    path: Path,
    *,
    template: str | None = CHATML,
    add_bos: bool = False,
    eos: int = TURN_END,
    token_types: Mapping[int, gguf.TokenType] | None = None,
    seed: int = 0,
    metadata: Mapping[str, float] | None = None,
) -> Path:
    """Write a llama model with a vocabulary of bytes; `token_types` changes the types of single tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    for key, value in (metadata or {}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_int32)(key, value)
    _add_vocabulary(writer, template, add_bos, eos, dict(token_types or {}))
    _add_tensors(writer, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(
    writer: gguf.GGUFWriter, template: str | None, add_bos: bool, eos: int, changed: Mapping[int, gguf.TokenType]
) -> None:
    types = [*_SPECIAL_TYPES, *[_TYPE.BYTE] * 256]
    for token, kind in changed.items():
        types[token] = kind
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*SPECIAL_TEXTS, *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)
    if template is not None:
        writer.add_chat_template(template)


def _add_tensors(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))

    key_value_width = WIDTH // 2
    add("token_embd.weight", VOCABULARY, WIDTH)
    add("output.weight", VOCABULARY, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        writer.add_tensor(f"{prefix}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{prefix}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        add(f"{prefix}.attn_q.weight", WIDTH, WIDTH)
        add(f"{prefix}.attn_k.weight", key_value_width, WIDTH)
        add(f"{prefix}.attn_v.weight", key_value_width, WIDTH)
        add(f"{prefix}.attn_output.weight", WIDTH, WIDTH)
        add(f"{prefix}.ffn_gate.weight", 2 * WIDTH, WIDTH)
        add(f"{prefix}.ffn_up.weight", 2 * WIDTH, WIDTH)
        add(f"{prefix}.ffn_down.weight", WIDTH, 2 * WIDTH)
