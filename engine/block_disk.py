"""The files of one root key: one thread writes and deletes in the order asked, two read ahead.

A file is written under another name, synced and renamed, so it is whole or absent. It is verified before its bytes are used.
Because of the order, the files never have more bytes than those that were asked for and not deleted since: one that cannot be
deleted stops all writing until it can be. A disk that fails to write is left alone for a while.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from pinyon.engine import block_file
from pinyon.engine.block import Block, Payload
from pinyon.engine.block_file import HEAD_BYTES, BlockDamagedError, BlockHeader
from pinyon.engine.file_system import FileSystem

if TYPE_CHECKING:
    from filelock import BaseFileLock

_log = logging.getLogger(__name__)

REST_S: Final = 60.0
"""How long nothing is written after a failure."""
QUEUE_CAP_BYTES: Final = 64 << 20
"""How much may wait to be written: enough to keep the disk busy during a step."""
SUFFIX: Final = ".kv"
UNFINISHED: Final = ".new"
_READERS: Final = 2


class Written(NamedTuple):
    """The end of a write, and whether there is a file now."""

    block: Block
    is_there: bool


class BlockDisk:
    """`folder` exists, and nobody else writes blocks there, for which a `lock` is held until the end. A block that somebody deletes is
    missed when it is read.

    Only the engine thread asks. How a write went is learned from `finished`, how a read went from its future.
    """

    def __init__(
        self,
        folder: Path,
        root: bytes,
        files: FileSystem | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        lock: "BaseFileLock | None" = None,
    ) -> None:
        self._folder = folder
        self._lock = lock
        self._root = root
        self._files = files or FileSystem()
        self._clock = clock
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._finished: SimpleQueue[Written] = SimpleQueue()
        self._queued_bytes = 0
        self._has_failed = False
        self._rests_until = float("-inf")
        self._undeleted: set[Path] = set()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="kv-read")
        self._writer = threading.Thread(target=self._run_jobs, name="kv-write", daemon=True)
        self._writer.start()

    def scan(self) -> Iterator[BlockHeader]:
        """Yield the header of every good file, and have the others deleted.

        Another thread may do this before anything else is asked for. Raises OSError where the folder cannot be read.
        """
        for path in self._files.paths(self._folder):
            if path.suffix not in {SUFFIX, UNFINISHED}:
                continue
            try:
                yield self._checked_header(path)
            except (OSError, BlockDamagedError):
                self._ask_to_delete(path)

    @property
    def takes_more(self) -> bool:
        """Whether a write may be asked for now."""
        return self._queued_bytes < QUEUE_CAP_BYTES and not self.rest_s

    @property
    def rest_s(self) -> float:
        """For how long the disk is left alone because it failed."""
        return REST_S if self._has_failed else max(0.0, self._rests_until - self._clock())

    @property
    def is_idle(self) -> bool:
        """Whether `finished` has told of all writes."""
        return not self._queued_bytes

    def write(self, block: Block) -> None:
        """Have the block written after everything that was asked before, if its bytes are still in RAM then."""
        self._queued_bytes += block.payload_bytes
        self._jobs.put(lambda: self._write(block))

    def delete(self, key: bytes) -> None:
        """Have a block's file deleted after everything that was asked before."""
        self._ask_to_delete(self._path(key))

    def read(self, block: Block) -> Future[memoryview]:
        """Return the payload to come, verified: exactly what was written for these tokens after this prefix.

        The future raises OSError, or BlockDamagedError.
        """
        return self._readers.submit(self._read, block)

    def finished(self) -> Iterator[Written]:
        """Yield the writes that have ended since the last call."""
        with contextlib.suppress(Empty):
            while True:
                written = self._finished.get_nowait()
                self._queued_bytes -= written.block.payload_bytes
                yield written
        if self._has_failed and self.is_idle:
            self._has_failed, self._rests_until = False, self._clock() + REST_S

    def settled(self) -> Future[None]:
        """Return what is done when all that was asked for so far is. It raises OSError if a file could not be deleted."""
        done: Future[None] = Future()
        self._jobs.put(lambda: self._settle(done))
        return done

    def _settle(self, done: Future[None]) -> None:
        try:
            self._delete_the_undeleted()
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def close(self) -> None:
        """Finish what was asked for, and end the threads."""
        self._jobs.put(None)
        self._writer.join()
        self._readers.shutdown()
        if self._lock is not None:
            self._lock.release()

    def _path(self, key: bytes) -> Path:
        return self._folder / _name(key)

    def _checked_header(self, path: Path) -> BlockHeader:
        head, size_bytes, made_at = self._files.head(path, HEAD_BYTES)
        header = replace(block_file.decode_head(head), made_at=made_at)
        if size_bytes != block_file.file_bytes(header.payload_bytes):
            raise BlockDamagedError(f"it has {size_bytes:,} bytes")
        self._check_identity(header, path)
        return header

    def _check_identity(self, header: BlockHeader, path: Path) -> None:
        if header.root != self._root or path.name != _name(header.key):
            raise BlockDamagedError("it is another block than its name says")

    def _read(self, block: Block) -> memoryview:
        path = self._path(block.key)
        header, payload = block_file.decode(self._files.read(path))
        self._check_identity(header, path)
        if (header.start, header.tokens) != (block.start, block.tokens):
            raise BlockDamagedError("it holds other tokens")
        return payload

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _write(self, block: Block) -> None:
        payload, is_there = block.payload, False
        if (
            payload is not None and not self._has_failed
        ):  # what was asked for behind a failure may follow on what failed
            try:
                self._delete_the_undeleted()
                self._write_file(block, payload)
                is_there = True
            except OSError as error:
                self._has_failed = True
                _log.warning("the KV cache cannot be written to disk for now: %s", error)
        self._finished.put(Written(block, is_there))

    def _write_file(self, block: Block, payload: Payload) -> None:
        assert block.parent is not None, "the beginning has no file"
        head = block_file.encode_head(
            BlockHeader(self._root, block.parent.key, block.start, block.tokens, block.payload_bytes, block.prefill_s)
        )
        path = self._path(block.key)
        unfinished = path.with_suffix(UNFINISHED)
        try:
            self._files.write(unfinished, (head, payload, block_file.seal(head, payload)))
            self._files.replace(unfinished, path)
        except OSError:
            self._delete(unfinished)
            self._delete(path)  # a failed rename may have been done
            raise

    def _ask_to_delete(self, path: Path) -> None:
        self._jobs.put(lambda: self._delete(path))

    def _delete(self, path: Path) -> None:
        try:
            self._files.delete(path)
        except OSError:
            self._undeleted.add(path)

    def _delete_the_undeleted(self) -> None:
        for path in [*self._undeleted]:
            self._files.delete(path)
            self._undeleted.remove(path)


def _name(key: bytes) -> str:
    return f"{key.hex()}{SUFFIX}"


def key_of(path: Path) -> bytes | None:
    """Return the key of the block that a file is for by its name; None if it is for none."""
    with contextlib.suppress(ValueError):
        return bytes.fromhex(path.stem) if path.suffix == SUFFIX else None
    return None
