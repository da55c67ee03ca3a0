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
    writer = _writer(path)
    for key, value in (metadata or {}).items():
        is_count = key.startswith("llama.")
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32 if is_count else writer.add_int32)(
            key, value
        )
    _add_vocabulary(writer, template, add_bos, eos, dict(token_types or {}))
    return _finish(writer, path, VOCABULARY, np.random.default_rng(seed))


def write_tiny_bpe(path: Path, pre_tokenizer: str, *, damaged: bool = False, context: int = CONTEXT) -> Path:
    """Write a llama with a byte-level BPE vocabulary without merges, one token a byte; `damaged` weights are NaN."""
    writer = _writer(path, context)
    tokens = [*gpt2_bytes(), "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([_TYPE.NORMAL] * 256 + [_TYPE.CONTROL])
    writer.add_token_merges(["ÿ ÿ"])  # the loader wants one; no text has it
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    return _finish(writer, path, len(tokens), np.random.default_rng(0), scale=np.nan if damaged else 0.3)


def gpt2_bytes() -> list[str]:
    """Return the characters by which byte-level BPE writes the bytes 0 to 255 (GPT-2, `bytes_to_unicode`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _writer(path: Path, context: int = CONTEXT) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    return writer


def _finish(
    writer: gguf.GGUFWriter, path: Path, vocabulary: int, random: np.random.Generator, scale: float = 0.3
) -> Path:
    _add_tensors(writer, vocabulary, random, scale)
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


def _add_tensors(writer: gguf.GGUFWriter, vocabulary: int, random: np.random.Generator, scale: float) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (scale * random.normal(size=shape)).astype(np.float32))

    key_value_width = WIDTH // 2
    add("token_embd.weight", vocabulary, WIDTH)
    add("output.weight", vocabulary, WIDTH)
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
