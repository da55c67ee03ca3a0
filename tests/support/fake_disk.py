"""A disk for blocks that is a dict: as BlockDisk, but everything has happened when a call returns."""

from collections.abc import Iterator
from concurrent.futures import Future

from pinyon.engine.block import Block
from pinyon.engine.block_disk import Written
from pinyon.engine.block_file import BlockHeader


class FakeDisk:
    """What reads end with is `error`, unless that is None. While `is_slow`, they do not end."""

    takes_more = True
    is_idle = True
    rest_s = 0.0

    def __init__(self) -> None:
        self.files: dict[bytes, tuple[BlockHeader, bytes]] = {}
        self.reads: list[Future[bytes]] = []
        self.error: Exception | None = None
        self.is_slow = False
        self._written: list[Written] = []

    @property
    def headers(self) -> list[BlockHeader]:
        return [header for header, _ in self.files.values()]

    def write(self, block: Block) -> None:
        assert block.parent is not None
        assert block.payload is not None
        header = BlockHeader(b"", block.parent.key, block.start, block.tokens, block.payload_bytes, block.prefill_s)
        self.files[block.key] = header, bytes(block.payload)
        self._written.append(Written(block, is_there=True))

    def finished(self) -> Iterator[Written]:
        while self._written:
            yield self._written.pop(0)

    def delete(self, key: bytes) -> None:
        self.files.pop(key, None)

    def read(self, block: Block) -> "Future[bytes]":
        read: Future[bytes] = Future()
        self.reads.append(read)
        if self.error is not None:
            read.set_exception(self.error)
        elif not self.is_slow:
            read.set_result(self.files[block.key][1])
        return read

    def settled(self) -> "Future[None]":
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        """Nothing is open."""
