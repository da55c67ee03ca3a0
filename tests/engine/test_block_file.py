"""What a damaged, forged or foreign block file gives: BlockDamagedError, and never a payload."""

import hashlib
import math
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinyon.engine import block_file
from pinyon.engine.block_file import DIGEST_BYTES, HEAD_BYTES, BlockDamagedError, BlockHeader, chain_key

HEADER = BlockHeader(
    root=bytes(range(32)),
    parent=bytes(range(100, 132)),
    start=128,
    tokens=(5, 0, 151_643, 2**31 - 1),
    payload_bytes=1000,
    prefill_s=0.125,
)
PAYLOAD = random.Random(1).randbytes(HEADER.payload_bytes)


def file_of(header: BlockHeader = HEADER, payload: bytes = PAYLOAD) -> bytes:
    head = block_file.encode_head(header)
    return head + payload + block_file.seal(head, payload)


def refuse(data: bytes) -> None:
    with pytest.raises(BlockDamagedError):
        block_file.decode(data)


def test_what_is_written_is_read():
    data = file_of()
    assert len(data) == block_file.file_bytes(HEADER.payload_bytes)
    assert block_file.decode_head(data[:HEAD_BYTES]) == HEADER
    checkpoint = replace(HEADER, tokens=(), start=130)
    assert block_file.decode(file_of(checkpoint)) == (checkpoint, PAYLOAD)
    assert block_file.decode(data) == (HEADER, PAYLOAD)


def test_a_full_block_is_read():
    header = replace(HEADER, tokens=tuple(range(64)))
    assert block_file.decode(file_of(header)) == (header, PAYLOAD)


def test_the_format_stays_as_it_is():
    """Files of an older version are read: whoever changes the format changes MAGIC, too."""
    data = file_of()
    fields = struct.pack("<8s32s32sIIQd", b"PINYONK1", HEADER.root, HEADER.parent, 128, 4, 1000, 0.125)
    tokens = b"".join(token.to_bytes(4, "little") for token in HEADER.tokens) + bytes(60 * 4)
    assert data[: HEAD_BYTES - DIGEST_BYTES] == fields + tokens
    assert data[-DIGEST_BYTES:] == hashlib.sha256(hashlib.sha256(fields + tokens).digest() + PAYLOAD).digest()


def test_a_key_covers_the_parent_and_the_tokens():
    assert chain_key(b"p" * 32, [1, 258]) == hashlib.sha256(b"p" * 32 + b"\x01\0\0\0\x02\x01\0\0").digest()
    assert HEADER.key == chain_key(HEADER.parent, HEADER.tokens)


def test_a_thousand_bit_flips_are_refused():
    data, choose = file_of(), random.Random(2)
    for bit in choose.sample(range(8 * len(data)), 1000):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        refuse(bytes(damaged))


def test_every_bit_flip_in_a_head_is_refused():
    head = file_of()[:HEAD_BYTES]
    for bit in range(8 * HEAD_BYTES):
        damaged = bytearray(head)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BlockDamagedError):
            block_file.decode_head(bytes(damaged))


def test_a_thousand_truncations_are_refused():
    data, choose = file_of(), random.Random(3)
    for length in choose.sample(range(len(data)), 1000):
        refuse(data[:length])


def test_more_than_the_file_is_refused():
    refuse(file_of() + b"\0")


def test_parts_of_two_files_are_refused():
    """Each part is as it was written, but not in this file."""
    data, other = file_of(), file_of(replace(HEADER, start=64))
    refuse(data[:HEAD_BYTES] + other[HEAD_BYTES:])
    changed = file_of(payload=bytes(HEADER.payload_bytes))
    refuse(data[:-DIGEST_BYTES] + changed[-DIGEST_BYTES:])


@pytest.mark.parametrize(
    "header",
    [
        replace(HEADER, start=1),
        replace(HEADER, tokens=(), start=0),
        replace(HEADER, payload_bytes=0),
        replace(HEADER, prefill_s=-1.0),
        replace(HEADER, prefill_s=math.nan),
        replace(HEADER, prefill_s=math.inf),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(header):
    with pytest.raises(BlockDamagedError, match="contradicts"):
        block_file.decode_head(block_file.encode_head(header))


def test_more_tokens_than_a_block_has_are_refused():
    fields = bytearray(file_of()[: HEAD_BYTES - DIGEST_BYTES])
    struct.pack_into("<I", fields, 8 + 32 + 32 + 4, 65)
    with pytest.raises(BlockDamagedError, match="contradicts"):
        block_file.decode_head(bytes(fields) + hashlib.sha256(fields).digest())


def test_another_format_is_refused():
    fields = b"PINYONK2" + file_of()[8 : HEAD_BYTES - DIGEST_BYTES]
    with pytest.raises(BlockDamagedError, match="of this format"):
        block_file.decode_head(fields + hashlib.sha256(fields).digest())


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_raise_anything_else(data):
    refuse(data)
    refuse(block_file.MAGIC + data)
