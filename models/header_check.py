"""Decides whether the values of a header make sense, alone and together, before native code acts on them.

A block count of 0 or above 512 makes llama.cpp end its process, and other versions of it have read past arrays that are
shorter than the vocabulary; what it refuses, it refuses after the load has begun, with the reason in its log.
"""

from collections.abc import Mapping
from itertools import pairwise

from pinyon.models.errors import GgufFormatError
from pinyon.models.gguf_reader import TOKENS_KEY, ArrayInfo, Entry, TensorInfo, ValueType, quoted

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_BLOCKS = 512  # LLAMA_MAX_LAYERS
MAX_HEADS = 1 << 16
MAX_WIDTH = 1 << 20
MAX_TRAILING_BYTES = 16 << 20  # padding is a few bytes; a file that goes on for gigabytes is none that anybody wrote
MAX_CONTEXT = (1 << 31) - 1

# Their converters write a head count of 0, because the key is required.
_WITHOUT_ATTENTION = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}

_TEXT_KEYS = (
    "general.architecture",
    "general.type",
    "general.name",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
)
_INTEGER_KEYS = ("general.file_type",)
# llama.cpp aborts on a part whose number is stored as anything else.
_SPLIT_TYPES = {
    "split.count": ValueType.UINT16,
    "split.no": ValueType.UINT16,
    "split.tensors.count": ValueType.INT32,
}
_VOCABULARY_KEYS = {
    TOKENS_KEY: (ValueType.STRING,),
    "tokenizer.ggml.merges": (ValueType.STRING,),
    "tokenizer.ggml.scores": (ValueType.FLOAT32,),
    "tokenizer.ggml.token_type": (ValueType.INT32, ValueType.UINT32),
}
_PER_TOKEN_KEYS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")

_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (a PyTorch file or a wheel?)",
    b"\x1f\x8b": "a gzip archive: unpack it first",
    b"lmgg": "a GGML file of 2023: get the GGUF of this model",
    b"fmgg": "a GGML file of 2023: get the GGUF of this model",
    b"tjgg": "a GGML file of 2023: get the GGUF of this model",
    b"version https://git-lfs": "a Git LFS pointer: run `git lfs pull` in its folder to get the file itself",
}


def check_magic(start: bytes, file_bytes: int) -> None:
    """Raises GgufFormatError that says what the file is instead of a GGUF, going by its first bytes: 64, or fewer."""
    if file_bytes == 0:
        raise GgufFormatError("the file is empty")
    if not b"GGUF".startswith(start[:4]):
        raise GgufFormatError(f"not a GGUF file but {_other_format(start)}")


def check_version(version: int) -> None:
    """Raises GgufFormatError for versions other than 2 and 3, and for the other byte order."""
    if version in (2, 3):
        return
    if version and version & 0xFFFF == 0:
        raise GgufFormatError("written for big-endian machines: get the little-endian file of this model")
    raise GgufFormatError(f"GGUF version {version}; versions 2 and 3 can be read")


def checked_alignment(metadata: Mapping[str, Entry]) -> int:
    """`general.alignment` in bytes, 32 where the key is missing. Raises GgufFormatError."""
    entry = metadata.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    alignment = entry.value
    if entry.value_type is not ValueType.UINT32 or not isinstance(alignment, int):
        raise GgufFormatError(f"'general.alignment' is stored as {entry.value_type.name}, not as UINT32")
    if alignment.bit_count() != 1 or not 8 <= alignment <= MAX_ALIGNMENT:
        raise GgufFormatError(
            f"'general.alignment' is {alignment:,}; it must be a power of two from 8 to {MAX_ALIGNMENT:,}"
        )
    return alignment


def check_metadata(metadata: Mapping[str, Entry]) -> None:
    """Types of the well-known keys, sizes of the model, arrays of the vocabulary. Raises GgufFormatError."""
    for key in _TEXT_KEYS:
        if key in metadata and metadata[key].value_type is not ValueType.STRING:
            raise GgufFormatError(f"'{key}' is stored as {metadata[key].value_type.name}, not as a string")
    for key in _INTEGER_KEYS:
        if key in metadata:
            _integer(key, metadata[key])
    for key, wanted in _SPLIT_TYPES.items():
        if key in metadata and metadata[key].value_type is not wanted:
            raise GgufFormatError(f"'{key}' is stored as {metadata[key].value_type.name}, not as {wanted.name}")
    _check_vocabulary(metadata)
    architecture = metadata.get("general.architecture")
    if architecture is not None and isinstance(architecture.value, str):
        _check_sizes(metadata, architecture.value)


def check_tensors(tensors: tuple[TensorInfo, ...], data_offset: int, alignment: int, file_bytes: int) -> None:
    """Names, alignment, end and overlap of the tensors' bytes in the file. Raises GgufFormatError."""
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise GgufFormatError(f"the tensor {quoted(tensor.name)} appears twice")
        names.add(tensor.name)
        if tensor.offset % alignment:
            raise GgufFormatError(
                f"the tensor {quoted(tensor.name)} starts at {tensor.offset:,}, which is not a multiple of {alignment}"
            )
    by_offset = sorted(tensors, key=lambda tensor: tensor.offset)
    if not by_offset:
        return
    needed = data_offset + max(tensor.offset + tensor.size_bytes for tensor in by_offset)
    if file_bytes - needed > MAX_TRAILING_BYTES:
        raise GgufFormatError(
            f"the tensors end at {needed:,} bytes and the file goes on to {file_bytes:,}: fetch the file again"
        )
    if needed > file_bytes:
        raise GgufFormatError(
            f"truncated: the tensors need {needed:,} bytes, the file has {file_bytes:,}: fetch the file again"
        )
    for tensor, following in pairwise(by_offset):
        if tensor.offset + tensor.size_bytes > following.offset:
            raise GgufFormatError(f"the tensors {quoted(tensor.name)} and {quoted(following.name)} overlap")


def _other_format(start: bytes) -> str:
    for magic, description in _OTHER_FORMATS.items():
        if start.startswith(magic):
            return description
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page: the download needs another address or a login"
    if start[8:9] == b"{":
        return "a safetensors file: get the GGUF of this model"
    return f"something that starts with the bytes {start[:8].hex(' ')}"


def _integer(key: str, entry: Entry) -> int:
    if not isinstance(entry.value, int) or not entry.value_type.is_integer:
        raise GgufFormatError(f"{quoted(key)} is stored as {entry.value_type.name}, not as an integer")
    return entry.value


def _check_vocabulary(metadata: Mapping[str, Entry]) -> None:
    for key, allowed in _VOCABULARY_KEYS.items():
        if key not in metadata:
            continue
        array = metadata[key].value
        if not isinstance(array, ArrayInfo) or array.element_type not in allowed:
            raise GgufFormatError(f"'{key}' must be an array of {allowed[0].name}")
    _check_bytes(metadata)
    tokens = _array_count(metadata, TOKENS_KEY)
    if tokens == 0:
        raise GgufFormatError(f"'{TOKENS_KEY}' is empty: a vocabulary needs at least one token")
    for key in _PER_TOKEN_KEYS:
        count = _array_count(metadata, key)
        if count is not None and count != tokens:
            raise GgufFormatError(f"'{key}' has {count:,} entries for a vocabulary of {tokens or 0:,} tokens")


def _check_bytes(metadata: Mapping[str, Entry]) -> None:
    """A SentencePiece vocabulary writes what it has no word for as bytes; llama.cpp aborts on a byte without a token."""
    model, tokens = metadata.get("tokenizer.ggml.model"), metadata.get(TOKENS_KEY)
    if model is None or model.value != "llama" or tokens is None or not isinstance(tokens.value, ArrayInfo):
        return
    if tokens.value.count and not tokens.value.spells_bytes:
        raise GgufFormatError(f"'{TOKENS_KEY}' lacks tokens for some of the 256 bytes")


def _array_count(metadata: Mapping[str, Entry], key: str) -> int | None:
    entry = metadata.get(key)
    return entry.value.count if entry is not None and isinstance(entry.value, ArrayInfo) else None


def _check_sizes(metadata: Mapping[str, Entry], architecture: str) -> None:
    fewest_heads = 0 if architecture in _WITHOUT_ATTENTION else 1
    limits = {
        "block_count": (1, MAX_BLOCKS),
        "context_length": (1, MAX_CONTEXT),
        "embedding_length": (1, MAX_WIDTH),
        "attention.head_count": (fewest_heads, MAX_HEADS),
        "attention.head_count_kv": (fewest_heads, MAX_HEADS),
    }
    for suffix, (low, high) in limits.items():
        key = f"{architecture}.{suffix}"
        if key not in metadata:
            continue
        if suffix.startswith("attention.") and isinstance(metadata[key].value, ArrayInfo):
            _check_per_block(metadata, key, f"{architecture}.block_count")
            continue
        value = _integer(key, metadata[key])
        if not low <= value <= high:
            raise GgufFormatError(f"{quoted(key)} is {value:,}; {low} to {high:,} are possible")


def _check_per_block(metadata: Mapping[str, Entry], key: str, block_count_key: str) -> None:
    """Head counts given block by block; 0 is a block without attention."""
    array, blocks = metadata[key].value, metadata.get(block_count_key)
    if not isinstance(array, ArrayInfo) or array.values is None or not array.element_type.is_integer:
        raise GgufFormatError(f"{quoted(key)} must be an integer, or an array of one integer a block")
    if blocks is not None and array.count != blocks.value:
        raise GgufFormatError(f"{quoted(key)} has {array.count:,} entries for {blocks.value} blocks")
    if not all(0 <= heads <= MAX_HEADS for heads in array.values):
        raise GgufFormatError(f"{quoted(key)} holds head counts outside of 0 to {MAX_HEADS:,}")
