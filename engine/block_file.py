"""The format of a block of KV on disk, or of a checkpoint. Every byte is covered by a checksum, and nothing is used unverified.

    head:     fixed fields, little-endian | SHA-256 of them
    payload:  as llama.cpp exports a sequence's state
    seal:     SHA-256 of the head's SHA-256 and the payload

An index is built from the heads alone.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pinyon.engine.block import BLOCK_TOKENS, Payload

MAGIC: Final = b"PINYONK1"
DIGEST_BYTES: Final = 32
_FIELDS: Final = struct.Struct(f"<8s 32s 32s I I Q d {BLOCK_TOKENS}i")
"""Magic, root, parent, start, number of tokens, bytes of payload, prefill seconds, tokens and zeros."""
HEAD_BYTES: Final = _FIELDS.size + DIGEST_BYTES


class BlockDamagedError(Exception):
    """A block's bytes are not what was written."""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """`tokens` is what the block holds, from position `start` on, none for a checkpoint; `parent` is the key of what comes before.

    `root` is the digest of everything else that decides what the KV is. Computing it took `prefill_s`. `made_at`, seconds since
    1970, is the file's time; its bytes do not say.
    """

    root: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]
    payload_bytes: int
    prefill_s: float
    made_at: float = field(default=0.0, compare=False)

    @property
    def key(self) -> bytes:
        return chain_key(self.parent, self.tokens)


def chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of tokens that follow what `parent` is the key of: SHA-256 of both, tokens as 32-bit little-endian."""
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}i", *tokens)).digest()


def encode_head(header: BlockHeader) -> bytes:
    tokens = header.tokens
    fields = _FIELDS.pack(
        MAGIC,
        header.root,
        header.parent,
        header.start,
        len(tokens),
        header.payload_bytes,
        header.prefill_s,
        *tokens,
        *[0] * (BLOCK_TOKENS - len(tokens)),
    )
    return fields + hashlib.sha256(fields).digest()


def seal(head: bytes, payload: Payload) -> bytes:
    """Return what a file ends with."""
    digest = hashlib.sha256(head[-DIGEST_BYTES:])
    digest.update(payload)
    return digest.digest()


def file_bytes(payload_bytes: int) -> int:
    """Return the size of the whole file."""
    return HEAD_BYTES + payload_bytes + DIGEST_BYTES


def decode_head(head: bytes) -> BlockHeader:
    """Return the header that the first HEAD_BYTES of a file hold.

    Raises:
        BlockDamagedError: that is no whole head, or not as it was written.
    """
    if len(head) != HEAD_BYTES or not head.startswith(MAGIC):
        raise BlockDamagedError("it is no whole block of this format")
    fields = head[:-DIGEST_BYTES]
    if hashlib.sha256(fields).digest() != head[-DIGEST_BYTES:]:
        raise BlockDamagedError("its head differs from its checksum")
    _, root, parent, start, count, payload_bytes, prefill_s, *tokens = _FIELDS.unpack(fields)
    has_place = start % BLOCK_TOKENS == 0 if count else start > 0
    if not has_place or count > BLOCK_TOKENS or not payload_bytes or not 0 <= prefill_s < math.inf:
        raise BlockDamagedError("its header contradicts itself")
    return BlockHeader(root, parent, start, tuple(tokens[:count]), payload_bytes, prefill_s)


def decode(data: bytes) -> tuple[BlockHeader, memoryview]:
    """Return the header and the payload of a whole file. Raises BlockDamagedError for any byte that was not written so."""
    head, payload = data[:HEAD_BYTES], memoryview(data)[HEAD_BYTES:-DIGEST_BYTES]
    header = decode_head(head)
    if len(data) != file_bytes(header.payload_bytes):
        raise BlockDamagedError(f"it has {len(data):,} bytes and should have {file_bytes(header.payload_bytes):,}")
    if seal(head, payload) != data[-DIGEST_BYTES:]:
        raise BlockDamagedError("its payload differs from its checksum")
    return header, payload
