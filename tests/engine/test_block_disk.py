"""Files that are whole or absent, verified, in order, and of nobody else; a disk that fails is left alone."""

import errno
import logging
import os
import random
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_files import Fault, FaultyFiles, RecordingFiles, folder_bytes, settle

from pinyon.engine import block_file
from pinyon.engine.block import Block
from pinyon.engine.block_disk import QUEUE_CAP_BYTES, REST_S, BlockDisk
from pinyon.engine.block_file import BlockDamagedError, BlockHeader, chain_key, file_bytes
from pinyon.engine.file_system import FileSystem

ROOT = b"r" * 32
BEGINNING = Block(b"n" * 32, None, 0, ())
PAYLOAD = random.Random(1).randbytes(5000)


def block_of(*tokens: int, payload: bytes = PAYLOAD) -> Block:
    return Block(chain_key(BEGINNING.key, tokens), BEGINNING, 0, tokens, len(payload), 0.5, payload)


def header_of(block: Block, root: bytes = ROOT) -> BlockHeader:
    return BlockHeader(root, BEGINNING.key, block.start, block.tokens, block.payload_bytes, block.prefill_s)


def file_of(header: BlockHeader, payload: bytes = PAYLOAD) -> bytes:
    head = block_file.encode_head(header)
    return head + payload + block_file.seal(head, payload)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_disk(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., BlockDisk]]:
    made: list[BlockDisk] = []

    def make(files: FileSystem | None = None) -> BlockDisk:
        made.append(BlockDisk(tmp_path, ROOT, files, clock))
        return made[-1]

    yield make
    for disk in made:
        disk.close()


@contextmanager
def paused(disk: BlockDisk) -> Iterator[None]:
    """Let the writer begin nothing in the meantime."""
    gate = threading.Event()
    disk._jobs.put(lambda: assert_in_time(gate))
    try:
        yield
    finally:
        gate.set()


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(30)


def write(disk: BlockDisk, *blocks: Block) -> list[bool]:
    for block in blocks:
        disk.write(block)
    settle(disk)
    finished = [*disk.finished()]
    assert [written.block for written in finished] == [*blocks]
    return [written.is_there for written in finished]


def path_in(folder: Path, block: Block) -> Path:
    return folder / f"{block.key.hex()}.kv"


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Writing


def test_what_is_written_is_found_and_read(tmp_path, make_disk):
    disk, block = make_disk(), block_of(1, 2, 3)
    assert write(disk, block) == [True]
    assert disk.read(block).result(30) == PAYLOAD
    assert [*make_disk().scan()] == [header_of(block)]
    assert folder_bytes(tmp_path) == file_bytes(len(PAYLOAD))


def test_only_the_owner_can_read_a_file(tmp_path, make_disk):
    before = os.umask(0)
    try:
        write(make_disk(), block_of(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_in(tmp_path, block_of(1)).stat().st_mode) == 0o600


def test_a_file_gets_its_name_once_the_disk_has_it(tmp_path, make_disk, monkeypatch):
    block, seen = block_of(1), []

    def sync(descriptor: int) -> None:
        seen.append((names_in(tmp_path), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    write(make_disk(), block)
    assert seen == [({f"{block.key.hex()}.new"}, file_bytes(len(PAYLOAD)))]
    assert names_in(tmp_path) == {f"{block.key.hex()}.kv"}


def test_writes_and_deletes_keep_their_order(tmp_path, make_disk):
    files = RecordingFiles()
    disk, one, two = make_disk(files), block_of(1), block_of(2)
    with paused(disk):
        disk.write(one)
        disk.delete(one.key)
        disk.write(two)
        disk.write(one)
        disk.delete(two.key)
    settle(disk)
    calls = [(method, name[:8]) for method, name in files.calls if method != "write"]
    first, second = one.key.hex()[:8], two.key.hex()[:8]
    assert calls == [("replace", first), ("delete", first), ("replace", second), ("replace", first), ("delete", second)]
    assert names_in(tmp_path) == {path_in(tmp_path, one).name}
    assert files.peak_bytes == 2 * file_bytes(len(PAYLOAD))


def test_what_has_left_ram_before_its_turn_is_not_written(tmp_path, make_disk):
    disk, block = make_disk(), block_of(1)
    with paused(disk):
        disk.write(block)
        block.payload = None
    settle(disk)
    assert [written.is_there for written in disk.finished()] == [False]
    assert names_in(tmp_path) == set()
    assert disk.takes_more, "that is no failure"


def test_a_full_queue_takes_no_more(make_disk):
    disk, block = make_disk(RecordingFiles()), block_of(1)
    block.payload_bytes = QUEUE_CAP_BYTES
    with paused(disk):
        disk.write(block)
        assert not disk.takes_more
    settle(disk)
    assert not disk.takes_more, "that it is written was not noted yet"
    assert [*disk.finished()]
    assert disk.takes_more


def test_closing_finishes_what_was_asked_for(tmp_path, make_disk):
    disk = make_disk()
    with paused(disk):
        disk.write(block_of(1))
        disk.write(block_of(2))
    disk.close()
    assert len(names_in(tmp_path)) == 2


# Failures


@pytest.mark.parametrize("fault", [Fault.NO_SPACE, Fault.BROKEN, Fault.READ_ONLY])
@pytest.mark.parametrize("call", [0, 1])  # write, rename
def test_a_failure_leaves_no_file_and_is_told_once(tmp_path, make_disk, clock, caplog, fault, call):
    files = FaultyFiles(fault, call)
    disk = make_disk(files)
    with paused(disk):
        for token in range(10):
            disk.write(block_of(token))
    settle(disk)
    assert [written.is_there for written in disk.finished()] == [False] * 10
    assert names_in(tmp_path) == set()
    assert files.count("write") == 1, "what waited behind it was tried"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert os.strerror(fault.value) in caplog.text
    clock.now = REST_S - 0.1
    assert not disk.takes_more
    clock.now = REST_S
    assert disk.takes_more
    assert write(disk, block_of(1)) == [True]


def test_nothing_is_written_behind_a_failure_before_it_was_told(tmp_path, make_disk, clock):
    """It may follow on what failed, and the engine thread does not know yet."""
    disk = make_disk(FaultyFiles(Fault.BROKEN, 0))
    disk.write(block_of(1))
    settle(disk)
    clock.now = 2 * REST_S
    assert not disk.takes_more
    assert disk.rest_s
    with paused(disk):
        disk.write(block_of(2))
        assert [written.is_there for written in disk.finished()] == [False]
    settle(disk)
    assert names_in(tmp_path) == set()
    assert [written.is_there for written in disk.finished()] == [False]
    assert disk.rest_s == REST_S
    assert not disk.takes_more


def test_nothing_is_written_beside_a_file_that_cannot_be_deleted(tmp_path, make_disk, clock):
    files = FaultyFiles(Fault.BROKEN, 2)  # write, rename, delete
    disk, one, two = make_disk(files), block_of(1), block_of(2)
    write(disk, one)
    disk.delete(one.key)
    assert write(disk, two) == [True]
    assert names_in(tmp_path) == {path_in(tmp_path, two).name}
    assert files.peak_bytes == file_bytes(len(PAYLOAD)), "both files were there at once"
    assert write(disk, one, block_of(3)) == [True, True]
    assert path_in(tmp_path, one).exists(), "it was deleted once more"


def test_a_file_that_stays_undeletable_stops_all_writing(tmp_path, make_disk, clock, caplog):
    files = FaultyFiles(Fault.READ_ONLY, 2, lasting=True)
    disk, one, two = make_disk(files), block_of(1), block_of(2)
    write(disk, one)
    disk.delete(one.key)
    for _ in range(3):
        assert write(disk, two) == [False]
        clock.now += REST_S
    assert names_in(tmp_path) == {path_in(tmp_path, one).name}
    assert files.count("write") == 1
    assert len(caplog.records) == 3


def test_a_folder_that_has_gone_is_a_failure_like_others(tmp_path, clock):
    disk = BlockDisk(tmp_path / "gone", ROOT, clock=clock)
    assert write(disk, block_of(1)) == [False]
    with pytest.raises(FileNotFoundError):
        disk.read(block_of(1)).result(30)
    with pytest.raises(FileNotFoundError):
        [*disk.scan()]
    disk.close()


@contextmanager
def no_file_larger_than(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_gone_on_with(tmp_path):
    """The system writes up to the limit, and only the next call says why."""
    path = tmp_path / "short"
    with no_file_larger_than(3000), pytest.raises(OSError) as raised:
        FileSystem().write(path, [bytes(1000), bytes(5000)])
    assert raised.value.errno == errno.EFBIG
    assert path.stat().st_size == 3000


# Reading


def damage(path: Path, choose: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if choose.random() < 0.5:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    else:
        del data[choose.randrange(len(data)) :]
    path.write_bytes(data)


def test_damaged_files_are_not_read(tmp_path, make_disk):
    disk, block, choose = make_disk(), block_of(1, 2, 3), random.Random(4)
    write(disk, block)
    path = path_in(tmp_path, block)
    good = path.read_bytes()
    for _ in range(100):
        damage(path, choose)
        with pytest.raises(BlockDamagedError):
            disk.read(block).result(30)
        path.write_bytes(good)
    assert disk.read(block).result(30) == PAYLOAD


FOREIGN = {
    "another root": file_of(header_of(block_of(1), root=b"R" * 32)),
    "another namespace": file_of(replace(header_of(block_of(1)), parent=b"N" * 32)),
    "other tokens": file_of(header_of(block_of(2))),
    "another format": b"PINYONK2" + file_of(header_of(block_of(1)))[8:],
    "another place": file_of(replace(header_of(block_of(1)), start=64)),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_under_a_blocks_name_is_not_read(tmp_path, make_disk, kind):
    block = block_of(1)
    path_in(tmp_path, block).write_bytes(FOREIGN[kind])
    with pytest.raises(BlockDamagedError):
        make_disk().read(block).result(30)


def test_other_tokens_with_the_same_key_are_not_read(make_disk, monkeypatch):
    monkeypatch.setattr(block_file, "chain_key", lambda _parent, _tokens: b"k" * 32)
    disk = make_disk()
    one, two = (replace(block_of(token), key=b"k" * 32) for token in (1, 2))
    write(disk, one)
    assert disk.read(one).result(30) == PAYLOAD
    with pytest.raises(BlockDamagedError, match="other tokens"):
        disk.read(two).result(30)


# Scanning


def test_a_scan_deletes_what_is_no_whole_block_of_its_own(tmp_path, make_disk):
    disk, good = make_disk(), [block_of(token) for token in range(100, 103)]
    write(disk, *good)
    data = path_in(tmp_path, good[0]).read_bytes()
    path_in(tmp_path, good[0]).with_suffix(".new").write_bytes(data)
    for number, kind in enumerate(k for k in FOREIGN if k != "another place"):
        (tmp_path / f"{number:064x}.kv").write_bytes(FOREIGN[kind])
    path_in(tmp_path, block_of(1)).write_bytes(FOREIGN["another root"])
    path_in(tmp_path, block_of(2)).write_bytes(data[:-1])
    path_in(tmp_path, block_of(3)).write_bytes(b"")
    (tmp_path / "named-by-hand.kv").write_bytes(data)
    (tmp_path / "lock").write_bytes(b"somebody else's")

    assert sorted(disk.scan(), key=lambda each: each.tokens) == [header_of(block) for block in good]
    settle(disk)
    assert names_in(tmp_path) == {"lock", *(path_in(tmp_path, block).name for block in good)}


def test_a_scan_deletes_what_cannot_be_read(tmp_path, make_disk):
    write(make_disk(), block_of(1), block_of(2))
    disk = make_disk(FaultyFiles(Fault.BROKEN, 1))  # list, first head
    assert len([*disk.scan()]) == 1
    settle(disk)
    assert len(names_in(tmp_path)) == 1


# No code in files: CVE-2025-69872

UNPICKLING = """
import sys
from pathlib import Path

seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event == "pickle.find_class" else None)

from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_store import BlockStore

def store_over(folder):
    disk = BlockDisk(folder, bytes(32))
    store = BlockStore(1 << 20)
    store.attach(disk, disk.scan(), 1 << 20)
    return store

bomb = b"cos\\nsystem\\n(S'exit 1'\\ntR."
folder = Path(sys.argv[1])
first = store_over(folder)
first.add(first.root(""), range(64), bomb, 1.0)
first.close()
second = store_over(folder)
(hit,) = second.find("", range(64))
assert second.read(hit.block).result(30) == bomb
second.close()
assert not seen and "pickle" not in sys.modules, "the load path unpickles"

import pickle
try:
    pickle.loads(b"cos\\nno_such_name\\n.")
except AttributeError:
    pass
assert seen, "the guard sees nothing"
"""


def test_nothing_is_unpickled(tmp_path):
    subprocess.run([sys.executable, "-c", UNPICKLING, tmp_path], check=True, timeout=60)
