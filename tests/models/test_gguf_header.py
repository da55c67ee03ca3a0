"""The header reader: a right file is read whole, and nothing else gets past it than a named reason."""

import os
import struct
import time
import tracemalloc
from dataclasses import replace

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinyon.models import gguf_header
from pinyon.models.errors import (
    GgufFormatError,
    HeaderIncompleteError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from pinyon.models.ggml_types import GGML_TYPES, REMOVED_TYPES
from pinyon.models.gguf_header import check_runnable, parse_header, read_header
from pinyon.models.gguf_reader import MAX_HEADER_BYTES, ArrayInfo, ValueType

from .gguf_files import Array, Gguf, Tensor, Text, tiny

U8, I8, U16, U32, I32 = ValueType.UINT8, ValueType.INT8, ValueType.UINT16, ValueType.UINT32, ValueType.INT32
F32, BOOL, TEXT, ARRAY, U64 = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING, ValueType.ARRAY, ValueType.UINT64
HUGE = (1 << 31, 1 << 40, 1 << 60, 1 << 62, 1 << 63, (1 << 64) - 1)

GOOD = tiny()
GOOD_BYTES = GOOD.encode()


def in_place(position: int, data: bytes) -> bytes:
    return GOOD_BYTES[:position] + data + GOOD_BYTES[position + len(data) :]


def truncations():
    header_bytes = len(GOOD.header())
    cuts = {1, 2, 3, 4, 7, 8, 15, 16, 23, 24, len(GOOD_BYTES) // 2, len(GOOD_BYTES) - 129}
    cuts |= set(range(25, header_bytes, 31))
    for cut in sorted(cuts):
        yield f"cut to {cut}", GOOD_BYTES[:cut], "truncated"


def other_formats():
    yield "empty", b"", "empty"
    yield "lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "Git LFS pointer"
    yield "html", b"  <!DOCTYPE html><html><body>login</body></html>", "web page"
    yield "html without doctype", b"<html lang=en>", "web page"
    yield "zip", b"PK\x03\x04" + bytes(60), "zip archive"
    yield "gzip", b"\x1f\x8b\x08" + bytes(60), "gzip"
    yield "safetensors", struct.pack("<Q", 900) + b'{"__metadata__":{}}', "safetensors"
    yield "ggml of 2023", b"tjgg" + bytes(60), "GGML file of 2023"
    yield "text", b"hello world", "starts with the bytes 68 65 6c"
    yield "other case", b"gguf" + GOOD_BYTES[4:], "not a GGUF"
    for version in (0, 1, 4, 99):
        yield f"version {version}", replace(GOOD, version=version), f"version {version}"
    yield "big-endian", in_place(4, struct.pack(">I", 3)), "big-endian"


def counts():
    for count in HUGE:
        yield f"{count} tensors", replace(GOOD, tensor_count=count), "claims .* tensors"
        yield f"{count} entries", replace(GOOD, metadata_count=count), "claims .* metadata entries"
        yield f"key of {count}", GOOD.with_value(Text("key", count), U8, 1), "length of metadata key"
        yield f"text of {count}", GOOD.with_value("key", TEXT, Text("text", count)), "truncated: 'key'"
        yield f"name of {count}", GOOD.with_tensor(name=Text("name", count)), "length of the name of tensor 2"
        strings = Array(TEXT, ("one", Text("two", count), "three"))
        yield f"string of {count} in an array", GOOD.with_value("key", ARRAY, strings), "truncated: 'key'"
        yield f"{count} strings", GOOD.with_value("key", ARRAY, Array(TEXT, ("one",), count)), "claims .* strings"
        yield f"{count} numbers", GOOD.with_value("key", ARRAY, Array(U16, (1,), count)), "claims .* numbers"
    yield "too few entries", replace(GOOD, metadata_count=1), "."
    yield "too many entries", replace(GOOD, metadata_count=len(GOOD.metadata) + 1), "."
    yield "too many tensors", replace(GOOD, tensor_count=len(GOOD.tensors) + 1), "length of the name of tensor 5"


def keys_and_values():
    yield "key twice", replace(GOOD, metadata=(*GOOD.metadata, GOOD.metadata[2])), "'general.name' appears twice"
    yield "empty key", GOOD.with_value("", U8, 1), "length of metadata key 18 is 0"
    yield "key over 65,535", GOOD.with_value("k" * 65_536, U8, 1), "65,536"
    yield "key with newline", GOOD.with_value("a\nb", U8, 1), r"control characters: 'a\\nb'"
    yield "key with override", GOOD.with_value("a\u202eb", U8, 1), r"control characters: 'a\\u202eb'"
    yield "key not UTF-8", GOOD.with_value(b"a\xff", U8, 1), "metadata key 18 is not UTF-8"
    yield "value not UTF-8", GOOD.with_value("key", TEXT, Text(b"ok\xc3")), "'key' is not UTF-8"
    for kind in (13, 99, (1 << 32) - 1):
        yield f"value type {kind}", GOOD.with_value("key", kind, b"\0" * 8), f"'key' has the value type {kind}"
        yield f"element type {kind}", GOOD.with_value("key", ARRAY, Array(kind, ())), f"'key' has the value type {kind}"
    nested = Array(ARRAY, (Array(U8, (1,)),))
    yield "array of arrays", GOOD.with_value("key", ARRAY, nested), "array of arrays"
    yield "10,000 arrays deep", GOOD.with_value("key", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000), "array of arrays"
    yield "bool of 2", GOOD.with_value("key", BOOL, 2), "bool with the value 2"


def alignments():
    for alignment in (0, 1, 3, 4, 7, 33, 48, 1 << 17, 1 << 30, 1 << 31, (1 << 32) - 1):
        yield f"alignment {alignment}", GOOD.with_value("general.alignment", U32, alignment), "'general.alignment' is"
    for kind, value in ((U64, 32), (I32, 32), (U8, 32), (F32, 32.0), (TEXT, "32"), (ARRAY, Array(U32, (32,)))):
        mutant = GOOD.with_value("general.alignment", kind, value)
        yield f"alignment as {kind.name}", mutant, f"stored as {kind.name}"


def tensors():
    for dimensions in (0, 5, 1 << 31, (1 << 32) - 1):
        yield f"{dimensions} dimensions", GOOD.with_tensor(dimensions=dimensions), f"has {dimensions:,} dimensions"
    yield "5 sizes", GOOD.with_tensor(shape=(256, 1, 1, 1, 1)), "has 5 dimensions"
    for size in (0, -1, -(1 << 63)):
        yield f"row of {size}", GOOD.with_tensor(shape=(size, 2)), "at least 1"
        yield f"{size} rows", GOOD.with_tensor(shape=(256, size)), "at least 1"
    yield "2^62 rows", GOOD.with_tensor(shape=(256, 1 << 62)), "overflow 64 bits"
    yield "product of 2^64", GOOD.with_tensor(shape=(1 << 16,) * 4), "overflow 64 bits"
    yield "a tensor of 2^50", GOOD.with_tensor(shape=(256, 1 << 42)), "truncated: the tensors need"
    for kind, name in REMOVED_TYPES.items():
        yield f"removed type {name}", GOOD.with_tensor(type=kind), f"stored as {name}, which llama.cpp no longer"
    for kind in (43, 99, (1 << 32) - 1):
        yield f"type {kind}", GOOD.with_tensor(type=kind), f"unknown tensor type {kind}"
    for kind, row in ((12, 255), (2, 31), (2, 33), (39, 48), (40, 32), (41, 64)):
        yield f"type {kind} in rows of {row}", GOOD.with_tensor(type=kind, shape=(row, 2)), "stored in blocks of"
    for offset in (1, 31, 33):
        yield f"offset {offset}", GOOD.with_tensor(offset=offset), "not a multiple of 32"
    for offset in (1 << 20, 1 << 40, 1 << 63, (1 << 64) - 32):
        yield f"offset {offset}", GOOD.with_tensor(offset=offset), "truncated: the tensors need"
    yield "the same bytes", GOOD.with_tensor(offset=0), "overlap"
    yield "overlap", GOOD.with_tensor(offset=1024), "overlap"
    yield "name twice", GOOD.with_tensor(name="output_norm.weight"), "'output_norm.weight' appears twice"
    yield "name of 64 bytes", GOOD.with_tensor(name="n" * 64), "name of tensor 2 is 64 bytes"
    yield "no name", GOOD.with_tensor(name=""), "name of tensor 2 is 0 bytes"
    yield "name with NUL", GOOD.with_tensor(name="a\0b"), "control characters"
    yield "name not UTF-8", GOOD.with_tensor(name=b"\xff\xfe"), "name of tensor 2 is not UTF-8"


def sizes():
    for count in (0, 513, (1 << 31) - 1, (1 << 32) - 1):
        yield f"{count} blocks", GOOD.with_value("llama.block_count", U32, count), f"'llama.block_count' is {count:,}"
    yield "-1 blocks", GOOD.with_value("llama.block_count", I32, -1), "'llama.block_count' is -1"
    yield "2^63 blocks", GOOD.with_value("llama.block_count", U64, 1 << 63), "'llama.block_count' is"
    for kind, value in ((TEXT, "2"), (F32, 2.0), (BOOL, 1), (ARRAY, Array(U32, (2,)))):
        yield f"blocks as {kind.name}", GOOD.with_value("llama.block_count", kind, value), "not as an integer"
    out_of_range = {
        "context_length": (0, 1 << 31, (1 << 32) - 1),
        "embedding_length": (0, 1 << 21, (1 << 32) - 1),
        "attention.head_count": (0, 1 << 17, (1 << 32) - 1),
        "attention.head_count_kv": (0, 1 << 17),
    }
    for suffix, values in out_of_range.items():
        for value in values:
            key = f"llama.{suffix}"
            yield f"{suffix} {value}", GOOD.with_value(key, U32, value), f"'{key}' is {value:,}"
        yield f"{suffix} as text", GOOD.with_value(f"llama.{suffix}", TEXT, "8"), "not as an integer"
    heads = "llama.attention.head_count_kv"
    yield "heads of one block", GOOD.with_value(heads, ARRAY, Array(U32, (2,))), "1 entries for 2 blocks"
    yield "heads of 5,000 blocks", GOOD.with_value(heads, ARRAY, Array(U32, (2,) * 5000)), "one integer a block"
    yield "-1 heads", GOOD.with_value(heads, ARRAY, Array(I32, (2, -1))), "outside of 0"
    yield "half heads", GOOD.with_value(heads, ARRAY, Array(F32, (2.0, 0.5))), "one integer a block"


def test_a_file_that_goes_on_for_gigabytes_is_refused(tmp_path):
    path = tmp_path / "long.gguf"
    path.write_bytes(GOOD_BYTES)
    os.truncate(path, 100 << 30)
    with pytest.raises(GgufFormatError, match="the file goes on to 107,374,182,400"):
        read_header(path)


def vocabularies():
    tokens, scores, kinds = "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"
    yield "no tokens", GOOD.with_value(tokens, ARRAY, Array(TEXT, ())), "empty"
    spelt = [f"<0x{byte:02X}>" for byte in range(256)]
    for misspelt in ("<0x-1>", "<0xZZ>", "<0x4 >", "\x7f0x41>", "<0x41\x7f", ""):
        vocabulary = Array(TEXT, tuple(misspelt if token == "<0x41>" else token for token in spelt))
        file = GOOD.with_value("tokenizer.ggml.model", TEXT, "llama").with_value(tokens, ARRAY, vocabulary)
        yield f"byte {misspelt!r}", file, "lacks tokens for some of the 256 bytes"
    for twice in (("a", "b", "c", "b", "d"), ("a", "b\0c", "c", "b\0d", "e"), ("<\n>", "", "", "<\n>", "d")):
        yield (
            f"a token twice: {twice}",
            GOOD.with_value(tokens, ARRAY, Array(TEXT, twice)),
            "holds the token '.*' twice",
        )
    yield "a token too long", GOOD.with_value(tokens, ARRAY, Array(TEXT, ("a", Text("b", 1 << 60)))), "truncated"
    yield "tokens as numbers", GOOD.with_value(tokens, ARRAY, Array(I32, (1,) * 5)), "must be an array of STRING"
    yield "tokens as text", GOOD.with_value(tokens, TEXT, "abc"), "must be an array of STRING"
    yield "scores without tokens", GOOD.without(tokens), "vocabulary of 0 tokens"
    yield "scores as bytes", GOOD.with_value(scores, ARRAY, Array(U8, (1,) * 5)), "must be an array of FLOAT32"
    yield "scores short", GOOD.with_value(scores, ARRAY, Array(F32, (1.0,) * 4)), "4 entries for a vocabulary of 5"
    yield "scores long", GOOD.with_value(scores, ARRAY, Array(F32, (1.0,) * 6)), "6 entries for a vocabulary of 5"
    yield "types as floats", GOOD.with_value(kinds, ARRAY, Array(F32, (1.0,) * 5)), "must be an array of INT32"
    yield "types as bytes", GOOD.with_value(kinds, ARRAY, Array(I8, (1,) * 5)), "must be an array of INT32"
    yield "types short", GOOD.with_value(kinds, ARRAY, Array(I32, (1,) * 4)), "4 entries for a vocabulary of 5"
    yield "one type", GOOD.with_value(kinds, I32, 1), "must be an array of INT32"
    yield "merges as numbers", GOOD.with_value("tokenizer.ggml.merges", ARRAY, Array(I32, (1,))), "array of STRING"
    for key in ("general.architecture", "general.type", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        yield f"{key} as a number", GOOD.with_value(key, U32, 7), f"'{key}' is stored as UINT32"
    yield "template as an array", GOOD.with_value("tokenizer.chat_template", ARRAY, Array(TEXT, ("a",))), "as ARRAY"
    yield "file type as text", GOOD.with_value("general.file_type", TEXT, "Q4"), "not as an integer"


GROUPS = (truncations, other_formats, counts, keys_and_values, alignments, tensors, sizes, vocabularies)
MUTANTS = [
    pytest.param(mutant if isinstance(mutant, bytes) else mutant.encode(), reason, id=name)
    for group in GROUPS
    for name, mutant, reason in group()
]


@pytest.mark.parametrize(("data", "reason"), MUTANTS)
def test_a_mutant_is_refused_with_its_reason_at_once(data, reason):
    start = time.process_time()
    with pytest.raises(GgufFormatError, match=reason) as refusal:
        parse_header(data, len(data))
    assert time.process_time() - start < 0.1
    assert type(refusal.value) is GgufFormatError
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


def test_there_are_mutants_enough():
    assert len(MUTANTS) > 150


@pytest.mark.parametrize("mutant", [GOOD_BYTES, *(case.values[0] for case in MUTANTS[:: len(MUTANTS) // 12])])
def test_no_mutant_takes_memory(mutant):
    tracemalloc.start()
    try:
        parse_header(mutant, len(mutant))
    except GgufFormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


def test_the_file_behind_the_mutants_is_right():
    header = parse_header(GOOD_BYTES, len(GOOD_BYTES))
    check_runnable(header)
    assert (header.version, header.alignment, header.file_bytes) == (3, 32, len(GOOD_BYTES))
    assert (header.architecture, header.general_type, header.name) == ("llama", "model", "Tiny Model")
    assert header.block_count == 2
    assert header.chat_template == "{{ messages[0].content }}"
    assert header.metadata["llama.attention.head_count_kv"] == ArrayInfo(U32, 2, (2, 4))
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayInfo(TEXT, 5, None)
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["llama.rope.freq_base"] == 10000.0


def test_tensors_and_offsets_agree_with_the_reference_reader(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(GOOD_BYTES)
    header, reference = read_header(path), gguf.GGUFReader(path)
    assert header.data_offset == reference.data_offset
    expected = [
        (tensor.name, tuple(int(size) for size in tensor.shape), tensor.data_offset, tensor.n_bytes)
        for tensor in reference.tensors
    ]
    assert [(t.name, t.shape, header.data_offset + t.offset, t.size_bytes) for t in header.tensors] == expected


def test_block_sizes_agree_with_the_reference_table():
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # never in files; the reference gives the size of a former layout
            continue
        assert (GGML_TYPES[kind].name, GGML_TYPES[kind].block_elements, GGML_TYPES[kind].block_bytes) == (
            kind.name,
            elements,
            size,
        )


def test_right_files_of_other_kinds_pass():
    for good in (
        replace(GOOD, version=2),
        replace(GOOD.with_value("general.alignment", U32, 64), alignment=64),
        GOOD.without("general.alignment"),
        GOOD.with_value("llama.block_count", U32, 512).without("llama.attention.head_count_kv"),
        GOOD.with_value("llama.attention.head_count_kv", ARRAY, Array(I32, (0, 4))),
        tiny("mamba").without("mamba.attention.head_count_kv").with_value("mamba.attention.head_count", U32, 0),
        GOOD.with_value("tokenizer.ggml.tokens", ARRAY, Array(TEXT, ("", "", "a", "ab", "b"))),
        GOOD.with_value("general.description", TEXT, "line\nline"),
        replace(GOOD, tensors=()),
    ):
        data = good.encode()
        parse_header(data, len(data))


def test_long_arrays_are_stepped_over():
    numbers = Array(U16, (7,) * 4097)
    data = GOOD.with_value("key", ARRAY, numbers).encode()
    assert parse_header(data, len(data)).metadata["key"] == ArrayInfo(U16, 4097, None)


def test_a_vocabulary_of_300k_is_walked_fast():
    data = replace(tiny(tokens=300_000), tensors=GOOD.tensors).encode()
    start = time.process_time()
    header = parse_header(data, len(data))
    assert time.process_time() - start < 1  # tens of milliseconds where nothing else runs
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, ArrayInfo)
    assert tokens.count == 300_000


def test_first_bytes_of_a_file_are_enough_once_the_header_is_whole():
    whole = parse_header(GOOD_BYTES, len(GOOD_BYTES))
    needed = 1
    rounds = 0
    while True:
        rounds += 1
        try:
            header = parse_header(GOOD_BYTES[:needed], len(GOOD_BYTES))
            break
        except HeaderIncompleteError as error:
            needed = max(error.needed_bytes, needed + 1)
    assert needed == len(GOOD.header())
    assert header == whole
    assert rounds > 10


def test_a_header_longer_than_the_first_read_is_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "_FIRST_READ_BYTES", 64)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(GOOD_BYTES)
    assert read_header(path) == parse_header(GOOD_BYTES, len(GOOD_BYTES))


def test_a_header_without_end_is_given_up_at_the_cap(tmp_path):
    claimed = MAX_HEADER_BYTES + 1
    path = tmp_path / "huge.gguf"
    path.write_bytes(replace(GOOD, metadata=(("key", TEXT, Text("", claimed)),)).header())
    os.truncate(path, 1 << 40)
    with pytest.raises(GgufFormatError, match="goes on past 67,108,864 bytes"):
        read_header(path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (GOOD.with_value("general.type", TEXT, "adapter"), "adapter"),
        (GOOD.with_value("general.architecture", TEXT, "controlvector"), "adapter"),
        (GOOD.with_value("general.type", TEXT, "mmproj"), "projector"),
        (GOOD.with_value("general.architecture", TEXT, "clip"), "projector"),
        (GOOD.with_value("general.type", TEXT, "imatrix"), "importance matrix"),
        (GOOD.without("general.architecture"), "does not name an architecture"),
        (
            GOOD.with_value("general.architecture", TEXT, "foo").with_value("foo.block_count", U32, 2),
            "architecture 'foo'",
        ),
        (GOOD.with_value("general.architecture", TEXT, "\x1b[2J"), r"unsupported architecture '\\x1b\[2J'"),
        (replace(GOOD, tensors=()), "no tensors"),
        (GOOD.without("llama.block_count"), "'llama.block_count'"),
        (
            tiny()
            .without("tokenizer.ggml.scores")
            .without("tokenizer.ggml.token_type")
            .without("tokenizer.ggml.tokens"),
            "no vocabulary",
        ),
    ],
)
def test_sound_files_that_are_no_model_are_named(changed, reason):
    data = changed.encode()
    header = parse_header(data, len(data))
    with pytest.raises(UnsupportedModelError, match=reason):
        check_runnable(header)


@pytest.mark.parametrize("name", ["Модели é.gguf", "a b'\"[x]%20\u0065\u0301.gguf", "-rf.gguf", "~.gguf", "dot..gguf"])
def test_odd_paths_are_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(GOOD_BYTES)
    assert read_header(path).name == "Tiny Model"


def loop(folder):
    path = folder / "loop.gguf"
    path.symlink_to(path)
    return path


def fifo(folder):
    path = folder / "fifo.gguf"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda folder: folder, ModelFileError, "is a folder"),
        (lambda folder: folder / "no.gguf", ModelNotFoundError, "no file at"),
        (lambda folder: folder / ("n" * 300), ModelFileError, "name too long"),
        (lambda folder: folder / "nul\0.gguf", ModelNotFoundError, r"no file at .*nul\\x00.gguf"),
        (lambda folder: folder / "\ud800.gguf", ModelNotFoundError, r"no file at .*\\ud800.gguf"),
        (lambda folder: folder / os.fsdecode(b"\xff\n.gguf"), ModelNotFoundError, r"\\udcff\\n.gguf"),
        (loop, ModelFileError, "symbolic links"),
        (fifo, ModelFileError, "not a regular file"),
    ],
)
def test_what_is_no_file_is_one_clear_line(tmp_path, make, error, reason):
    with pytest.raises(error, match=reason) as refusal:
        read_header(make(tmp_path))
    assert str(refusal.value).isprintable()


def test_an_unreadable_file_says_why(tmp_path, monkeypatch):
    path = tmp_path / "secret.gguf"
    path.write_bytes(GOOD_BYTES)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ModelFileError, match=r"secret\.gguf cannot be read: Permission denied"):
        read_header(path)


def test_a_refusal_names_the_file(tmp_path):
    path = tmp_path / "half.gguf"
    path.write_bytes(GOOD_BYTES[: len(GOOD_BYTES) // 2])
    with pytest.raises(GgufFormatError, match=r"half\.gguf: truncated: the tensors need"):
        read_header(path)


def outcome(data: bytes) -> None:
    refusal = ""
    try:
        check_runnable(parse_header(data, len(data)))
    except ModelFileError as error:
        refusal = str(error)
    assert refusal.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_give_a_header_or_a_refusal(data):
    outcome(data)
    outcome(b"GGUF\3\0\0\0" + data)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD.header())), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3)
)
def test_any_edit_in_place_gives_a_header_or_a_refusal(edits):
    data = GOOD_BYTES
    for position, new in edits:
        data = data[:position] + new + data[position + len(new) :]
    outcome(data[: len(GOOD_BYTES)])


SCALARS = st.one_of(
    st.tuples(st.just(U32), st.integers(0, (1 << 32) - 1)),
    st.tuples(st.just(I32), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.tuples(st.just(U64), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just(F32), st.floats(width=32)),
    st.tuples(st.just(BOOL), st.integers(0, 255)),
    st.tuples(st.just(TEXT), st.binary(max_size=20).map(Text)),
    st.tuples(
        st.just(ARRAY), st.builds(Array, st.just(I32), st.just((1, 2)), st.none() | st.integers(0, (1 << 64) - 1))
    ),
    st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=20)),
)
TENSORS = st.builds(
    Tensor,
    name=st.text(max_size=70) | st.binary(max_size=20),
    shape=st.lists(st.integers(-2, 600) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=5).map(tuple),
    type=st.integers(0, 50),
    offset=st.none() | st.integers(0, (1 << 64) - 1),
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from([key for key, _, _ in GOOD.metadata]) | st.text(max_size=10), SCALARS, max_size=3),
    st.lists(TENSORS, max_size=3),
)
def test_any_reserialised_mutant_gives_a_header_or_a_refusal(values, more_tensors):
    mutant: Gguf = replace(GOOD, tensors=(*GOOD.tensors, *more_tensors))
    for key, (kind, value) in values.items():
        mutant = mutant.with_value(key, kind, value)
    outcome(mutant.encode())
