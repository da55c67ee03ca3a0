"""The store finds what was added, gives back exactly that or nothing, and keeps to its caps, whatever the disk does.

The KV of a test is a digest of all tokens up to the block's end: bytes of another prefix are noticed.
"""

import hashlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_files import Fault, FaultyFiles, RecordingFiles, folder_bytes, settle
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pinyon.engine import block_disk, block_file, block_store
from pinyon.engine.block import BLOCK_TOKENS, Block
from pinyon.engine.block_disk import REST_S, BlockDisk
from pinyon.engine.block_file import BlockDamagedError, BlockHeader, file_bytes
from pinyon.engine.block_store import BUSY_REST_S, POLL_S, TAIL_REST_S, BlockStore, Hit
from pinyon.engine.cache_report import Miss
from pinyon.engine.file_system import FileSystem

ROOT = b"r" * 32
ROOMY = 1 << 30
KV_BYTES = 96
FILE_BYTES = file_bytes(KV_BYTES)


def kv_of(namespace: str, tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(f"{namespace} {[*tokens]}".encode()).digest() * (KV_BYTES // 32)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class World:
    """A store over a folder, used as the engine does, with a clock of its own."""

    def __init__(
        self, folder: Path, files: FileSystem | None = None, *, ram_cap: int = ROOMY, disk_cap: int = ROOMY
    ) -> None:
        self.folder = folder
        self.ram_cap = ram_cap
        self.disk_cap = disk_cap
        self.now = 0.0
        self.start(files)

    def start(self, files: FileSystem | None = None) -> None:
        self.files = files or RecordingFiles()
        self.store = BlockStore(self.ram_cap, self.clock)
        self.disk = BlockDisk(self.folder, ROOT, self.files, self.clock)
        try:
            self.store.attach(self.disk, self.disk.scan(), self.disk_cap)
        except OSError:
            self.disk.close()
            raise

    def clock(self) -> float:
        return self.now

    def save(self, tokens: Sequence[int], namespace: str = "") -> Block | None:
        """Add what a request has computed; return the last block that was taken."""
        block = self.store.root(namespace)
        for start in range(0, len(tokens), BLOCK_TOKENS):
            end = min(start + BLOCK_TOKENS, len(tokens))
            added = self.store.add(block, tokens[start:end], kv_of(namespace, tokens[:end]), 1.0)
            if added is None:
                break
            block = added
        return block

    def settle(self) -> None:
        """Have everything written that is due."""
        self.store.work()
        settle(self.disk)
        self.store.work()

    def resize(self, ram_cap: int, disk_cap: int) -> None:
        """Have other caps, and what is over them gone."""
        self.ram_cap, self.disk_cap = ram_cap, disk_cap
        self.store.resize(ram_cap, disk_cap)
        self.store.settled().result(30)
        self.store.work()
        settle(self.disk)
        self.files.peak_bytes = folder_bytes(self.folder)

    def settle_all(self) -> None:
        self.now += TAIL_REST_S
        self.settle()

    def held(self, tokens: Sequence[int], namespace: str = "") -> int:
        """Return how many of the tokens come back, and check what does."""
        at = 0
        for block, shared in self.store.find(namespace, tokens):
            assert block.start == at
            assert block.tokens[:shared] == tuple(tokens[at : at + shared])
            assert self.store.is_kept(block)
            if (data := self.read(block)) is None:
                break
            assert data == kv_of(namespace, [*tokens[:at], *block.tokens]), "the KV of another prefix"
            at += shared
        return at

    def read(self, block: Block) -> bytes | None:
        data = self.store.read(block)
        if isinstance(data, Future):
            try:
                return bytes(data.result(30))
            except (OSError, BlockDamagedError):
                self.store.lose(block)
                return None
        return None if data is None else bytes(data)

    def kill(self) -> None:
        """End without another word; what was asked of the disk is done."""
        self.disk.close()

    @property
    def ram_bytes(self) -> int:
        blocks = [*self.store._roots.values()]
        for block in blocks:
            blocks += block.children
        return sum(len(block.payload) for block in blocks if block.payload is not None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the writer begin nothing in the meantime."""
        gate = threading.Event()
        self.disk._jobs.put(lambda: self._wait(gate))
        try:
            yield
        finally:
            gate.set()

    @staticmethod
    def _wait(gate: threading.Event) -> None:
        assert gate.wait(30)

    def path_of(self, block: Block) -> Path:
        return self.folder / f"{block.key.hex()}.kv"


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(files: FileSystem | None = None, **caps: int) -> World:
        made.append(World(tmp_path, files, **caps))
        return made[-1]

    yield make
    for world in made:
        world.disk.close()


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(50_000), k=length)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def chain_of(block: Block) -> list[Block]:
    """Return a block and those before it, but not the beginning."""
    chain = []
    while block.parent is not None:
        chain.append(block)
        block = block.parent
    return chain


# Finding


def test_the_longest_known_beginning_is_found(make_world):
    world, tokens = make_world(), prompt(1, 200)
    world.save(tokens)
    for known in (0, 1, 63, 64, 65, 128, 150, 200):
        assert world.held([*tokens[:known], -1, *tokens]) == known
    assert [hit.tokens for hit in world.store.find("", tokens)] == [64, 64, 64, 8]


def test_the_closest_of_several_continuations_is_found(make_world):
    world, tokens = make_world(), prompt(1, 100)
    for known in (70, 90, 80):
        world.save([*tokens[:known], 60_000 + known])
    assert world.held(tokens) == 90


def test_namespaces_share_nothing(make_world):
    world, tokens = make_world(), prompt(1, 100)
    world.save(tokens, "mine")
    assert world.held(tokens, "yours") == 0
    world.settle_all()
    world.kill()
    world.start()
    assert world.held(tokens, "yours") == 0
    assert world.held(tokens, "mine") == 100


def test_what_is_known_is_not_added_again(make_world):
    world, tokens = make_world(), prompt(1, 100)
    last = world.save(tokens)
    assert world.save(tokens[:90]) is last
    assert world.save(tokens) is last
    assert world.ram_bytes == 2 * KV_BYTES


BLOCKS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)


@settings(max_examples=150, deadline=None)
@given(st.lists(BLOCKS, unique=True, max_size=20), BLOCKS)
def test_children_are_found_as_if_all_were_looked_at(runs, tokens):
    parent = Block(b"", None, 0, ())
    for run in runs:
        parent.insert(Block(b"", parent, 0, run))
    closest = parent.closest_child(tokens)
    assert (0 if closest is None else common(closest.tokens, tokens)) == max(
        (common(run, tokens) for run in runs), default=0
    )
    within = {run for run in runs if len(run) < len(tokens) and common(run, tokens) == len(run)}
    assert {child.tokens for child in parent.children_within(tokens)} == within
    with_all = parent.child_with(tokens)
    assert (with_all is not None) == any(common(run, tokens) == len(tokens) for run in runs)
    assert with_all is None or common(with_all.tokens, tokens) == len(tokens)
    for child in [*parent.children]:
        parent.remove(child)
    assert parent.children == []


# RAM


def test_ram_keeps_what_was_used_last(make_world):
    world = make_world(ram_cap=3 * KV_BYTES, disk_cap=0)
    one, two, three, four = (prompt(seed, 64) for seed in range(4))
    for tokens in (one, two, three):
        world.save(tokens)
    world.store.touch(world.store.find("", one)[-1].block)
    world.save(four)
    assert [world.held(tokens) for tokens in (one, two, three, four)] == [64, 0, 64, 64]


def test_a_chain_that_fills_its_tier_stays_whole(make_world):
    """Room for a block is not made at the cost of the block before it."""
    world, tokens = make_world(ram_cap=3 * KV_BYTES, disk_cap=2 * FILE_BYTES), prompt(1, 300)
    world.save(tokens)
    assert world.held(tokens) == 192
    world.settle()
    world.kill()
    world.start()
    assert world.held(tokens) == 128


def test_a_block_larger_than_ram_evicts_nothing(make_world):
    world = make_world(ram_cap=3 * KV_BYTES)
    world.save(prompt(1, 150))
    assert world.store.add(world.store.root(""), prompt(2, 64), bytes(4 * KV_BYTES), 1.0) is None
    assert world.held(prompt(1, 150)) == 150


def test_what_ram_evicts_is_read_from_its_file(make_world):
    world, tokens = make_world(ram_cap=2 * KV_BYTES), prompt(1, 128)
    world.save(tokens)
    world.settle()
    world.save(prompt(2, 128))
    world.settle()
    assert world.ram_bytes == 2 * KV_BYTES
    assert world.held(tokens) == 128
    assert world.files.count("read") == 2


def test_what_waits_to_be_written_is_in_ram_and_stays_there(make_world):
    world = make_world(ram_cap=3 * KV_BYTES)
    with world.paused():
        first = world.save(prompt(1, 192))
        world.store.work()
        assert world.save(prompt(2, 64)) is world.store.root(""), "there is no room"
        assert world.ram_bytes == 3 * KV_BYTES
        assert world.read(first) == kv_of("", prompt(1, 192))
    world.settle()
    assert world.save(prompt(2, 64)) is not world.store.root("")
    assert world.ram_bytes == 3 * KV_BYTES
    assert world.held(prompt(1, 192)) == 192


def test_what_had_to_make_room_is_remembered(make_world):
    world, old, new = make_world(ram_cap=2 * KV_BYTES), prompt(1, 128), prompt(2, 128)
    world.save(old)
    beginning = world.store.root("")
    world.save(new)
    assert world.store.why_missing(beginning, old[:64]) is Miss.EVICTED
    assert world.store.why_missing(beginning, prompt(3, 64)) is Miss.NEW
    world.settle()
    world.save(prompt(3, 128))
    assert world.store.why_missing(beginning, new[:64]) is not Miss.EVICTED, "it has a file"


def test_what_others_have_of_the_same_tokens_is_known(make_world):
    world, tokens = make_world(), prompt(1, 128)
    world.save(tokens)
    world.settle()
    keys = frozenset(block_disk.key_of(path) for path in world.folder.iterdir())
    world.store = store = BlockStore(ROOMY)  # as for another root key
    beginning = store.root("")
    assert store.why_missing(beginning, tokens[:64]) is Miss.NEW
    store.attach(world.disk, (), ROOMY, elsewhere=keys)
    assert store.why_missing(beginning, tokens[:64]) is Miss.OTHER_MODEL_OR_SETTINGS
    first = world.save(tokens[:64])
    assert store.why_missing(first, tokens[64:]) is Miss.OTHER_MODEL_OR_SETTINGS
    assert store.why_missing(first, prompt(2, 64)) is Miss.NEW
    assert store.why_missing(store.root("another namespace"), tokens[:64]) is Miss.NEW


def test_a_hit_tells_how_what_is_known_goes_on(make_world):
    world, tokens = make_world(), prompt(1, 150)
    world.save(tokens)
    for length in (10, 64, 100, 150):
        hit = world.store.find("", tokens[:length])[-1]
        assert hit.following(1000) == tokens[length:]
        assert hit.following(3) == tokens[length:][:3]
    assert Hit(world.store.root(""), 0).following(100) == tokens[:100]


def test_nothing_follows_a_block_that_has_gone(make_world):
    world, tokens = make_world(), prompt(1, 128)
    last = world.save(tokens)
    assert last is not None
    world.store.lose(last)
    assert not world.store.is_kept(last)
    assert world.store.read(last) is None
    assert world.store.add(last, prompt(2, 64), b"kv", 1.0) is None
    assert world.held(tokens) == 64
    world.store.lose(last)  # once more does no harm
    assert world.held(tokens) == 64


def test_while_others_compute_a_block_waits_for_idle_time_but_not_for_ever(make_world):
    world = make_world()
    world.save(prompt(1, 64))
    world.now = BUSY_REST_S - 0.1
    world.store.work(is_idle=False)
    settle(world.disk)
    assert world.files.count("write") == 0
    world.now = BUSY_REST_S
    world.store.work(is_idle=False)
    settle(world.disk)
    assert world.files.count("write") == 1


# Tails


def test_a_tail_is_written_when_nothing_has_followed_it_for_a_while(make_world):
    world = make_world()
    world.save(prompt(1, 100))
    world.settle()
    world.now = TAIL_REST_S - 0.1
    world.settle()
    assert world.files.count("write") == 1, "the whole block"
    world.now = TAIL_REST_S
    world.settle()
    assert world.files.count("write") == 2


def test_superseded_tails_are_not_written(make_world):
    world, tokens = make_world(), prompt(1, 120)
    for length in range(65, 120, 5):
        world.save(tokens[:length])
        world.now += TAIL_REST_S / 4
        world.settle()
    assert world.files.count("write") == 1
    assert world.ram_bytes == 2 * KV_BYTES
    world.settle_all()
    assert world.files.count("write") == 2


def test_a_tails_file_stays_until_the_longer_blocks_is_there(make_world):
    world, tokens = make_world(), prompt(1, 120)
    tail = world.save(tokens[:100])
    assert tail is not None
    world.settle_all()
    with world.paused():
        longer = world.save(tokens)
        assert longer is not None
        world.now += TAIL_REST_S
        world.store.work()
    world.settle()
    settle(world.disk)
    assert world.files.calls[-3:] == [
        ("write", world.path_of(longer).with_suffix(".new").name),
        ("replace", world.path_of(longer).name),
        ("delete", world.path_of(tail).name),
    ]
    assert world.held(tokens) == 120


def test_a_tail_stays_when_the_longer_block_is_lost_while_it_is_written(make_world):
    world, tokens = make_world(), prompt(1, 120)
    world.save(tokens[:100])
    world.settle_all()
    longer = world.save(tokens)
    assert longer is not None
    world.now += TAIL_REST_S
    world.store.work()
    settle(world.disk)
    world.store.lose(longer)
    world.settle()
    assert world.held(tokens) == 100
    world.store.check()


def test_a_short_prompt_gets_no_file(make_world):
    world = make_world()
    world.save(prompt(1, 63))
    world.settle_all()
    assert files_in(world.folder) == set()
    assert world.held(prompt(1, 63)) == 63


# Disk


def test_a_restart_finds_the_same(make_world):
    world = make_world()
    prompts = [prompt(seed, length) for seed, length in enumerate([64, 100, 128, 200, 300])]
    prompts += [prompts[-1][:130] + prompt(9, 50), prompts[-1][:64] + prompt(10, 80)]
    for tokens in prompts:
        world.save(tokens)
    world.settle_all()
    asked = [*prompts, *(tokens[:90] + prompt(11, 30) for tokens in prompts), prompt(12, 50)]
    before = [[(hit.block.key, hit.tokens) for hit in world.store.find("", tokens)] for tokens in asked]
    world.kill()
    world.start()
    assert [[(hit.block.key, hit.tokens) for hit in world.store.find("", tokens)] for tokens in asked] == before
    assert [world.held(tokens) for tokens in prompts] == [len(tokens) for tokens in prompts]


def test_closing_writes_what_has_no_file_yet(make_world):
    world = make_world()
    world.save(prompt(1, 100))
    world.store.close()
    world.start()
    assert world.held(prompt(1, 100)) == 100


def test_the_disk_forgets_the_end_of_a_chain_first(make_world):
    world, old = make_world(disk_cap=4 * FILE_BYTES), prompt(1, 192)
    chain = chain_of(world.save(old))
    world.settle()
    for seed in range(2, 5):
        world.save(prompt(seed, 64))
        world.settle()
    deleted = [name for method, name in world.files.calls if method == "delete"]
    assert deleted == [world.path_of(block).name for block in chain[:2]]


def test_a_file_that_made_room_is_written_again_before_what_follows_it(make_world):
    world, old = make_world(disk_cap=2 * FILE_BYTES), prompt(1, 128)
    world.save(old[:64])
    world.settle()
    for seed in (2, 3):
        world.save(prompt(seed, 64))
        world.settle()
    world.save(old)
    world.settle()
    world.kill()
    world.start()
    assert world.held(old) == 128


def test_what_is_being_written_makes_no_room(make_world):
    world = make_world(disk_cap=2 * FILE_BYTES)
    with world.paused():
        world.save(prompt(1, 128))
        world.store.work()
        world.save(prompt(2, 64))
        world.store.work()
    world.settle()
    assert files_in(world.folder) == {world.path_of(block).name for block in chain_of(world.save(prompt(1, 128)))}
    assert world.held(prompt(2, 64)) == 64, "it has no file, but it is in RAM"


def test_a_damaged_file_is_lost_with_all_that_follows_it(make_world):
    world, tokens = make_world(), prompt(1, 192)
    chain = chain_of(world.save(tokens))
    world.settle()
    world.kill()
    world.start()
    path = world.path_of(chain[1])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert world.held(tokens) == 64
    world.settle()
    settle(world.disk)
    assert [name for method, name in world.files.calls if method == "delete"] == [
        world.path_of(block).name for block in chain[:2]
    ]
    assert world.held(tokens) == 64
    world.save(tokens)
    assert world.held(tokens) == 192


def test_blocks_lost_while_they_are_written_leave_no_file(make_world):
    world, tokens = make_world(), prompt(1, 128)
    with world.paused():
        world.save(tokens)
        world.store.work()
        world.store.lose(world.store.find("", tokens)[0].block)
    world.settle()
    world.store.check()
    assert files_in(world.folder) == set()
    world.save(tokens)
    world.settle()
    assert len(files_in(world.folder)) == 2
    assert world.held(tokens) == 128


def test_what_failed_is_written_after_the_rest(make_world, caplog, monkeypatch):
    monkeypatch.setattr(block_disk, "QUEUE_CAP_BYTES", 1)
    files = FaultyFiles(Fault.NO_SPACE, 1)  # list, first write
    world, tokens = make_world(files), prompt(1, 192)
    with world.paused():
        world.save(tokens)
        world.store.work()
    settle(world.disk)
    world.settle()
    world.now = REST_S - 0.1
    world.settle()
    assert files_in(world.folder) == set()
    assert files.count("write") == 1
    assert world.held(tokens) == 192
    world.now = REST_S
    for _ in range(3):
        world.store.work()
        world.store.check()
        settle(world.disk)
    written = [name for method, name in files.calls if method == "replace"]
    assert written == [world.path_of(block).name for block in reversed(chain_of(world.save(tokens)))]
    assert len(caplog.records) == 1


def test_the_store_says_when_there_is_work(make_world):
    world = make_world(FaultyFiles(Fault.NO_SPACE, 3))  # list, write, rename, write
    assert BlockStore(ROOMY, world.clock).next_work_s() is None
    assert world.store.next_work_s() is None
    world.save(prompt(1, 100))
    assert world.store.next_work_s() == POLL_S, "the whole block"
    world.store.work()
    settle(world.disk)
    assert world.store.next_work_s() == POLL_S, "to take note of what was written"
    world.store.work()
    assert world.store.next_work_s() == TAIL_REST_S
    world.settle_all()
    assert world.store.next_work_s() == REST_S
    world.now += REST_S
    world.settle()
    assert world.store.next_work_s() is None


# What attaching a disk finds


def test_blocks_in_ram_and_files_of_an_earlier_run_become_one(make_world):
    """The disk comes late where the weights have to be read for their digest first."""
    world = make_world()
    shared, longer, shorter = prompt(1, 150), prompt(2, 150), prompt(3, 150)
    for tokens in (shared, longer[:140], shorter):
        world.save(tokens)
    world.store.close()

    world.store = BlockStore(ROOMY, world.clock)
    for tokens in (shared, longer, shorter[:140]):
        world.save(tokens)
    world.disk = BlockDisk(world.folder, ROOT, world.files, world.clock)
    world.store.attach(world.disk, world.disk.scan(), ROOMY)
    world.store.check()
    assert [world.held(tokens) for tokens in (shared, longer, shorter)] == [150, 150, 150]
    assert world.files.count("read") == 1, "all but the end of one is in RAM"
    world.settle_all()
    settle(world.disk)
    assert world.files.count("write") == 10
    assert len(files_in(world.folder)) == 9


def test_files_that_follow_on_nothing_are_deleted(make_world):
    world = make_world()
    chain = chain_of(world.save(prompt(1, 200)))
    world.settle_all()
    world.kill()
    world.path_of(chain[2]).unlink()
    world.start()
    settle(world.disk)
    assert files_in(world.folder) == {world.path_of(chain[3]).name}


def test_a_file_that_claims_another_place_is_deleted(make_world):
    world = make_world()
    first = world.save(prompt(1, 64))
    world.settle()
    assert first is not None
    tokens = tuple(prompt(2, 64))
    header = BlockHeader(ROOT, first.key, 128, tokens, KV_BYTES, 1.0)
    head, payload = block_file.encode_head(header), bytes(KV_BYTES)
    path = world.folder / f"{header.key.hex()}.kv"
    path.write_bytes(head + payload + block_file.seal(head, payload))
    world.kill()
    world.start()
    settle(world.disk)
    assert files_in(world.folder) == {world.path_of(first).name}
    assert world.held([*prompt(1, 64), *tokens]) == 64


@pytest.mark.parametrize("is_longer_first", [False, True])
def test_a_superseded_tail_that_a_kill_left_is_deleted(make_world, is_longer_first):
    world, tokens = make_world(), prompt(1, 120)
    tail = world.save(tokens[:100])
    assert tail is not None
    world.settle_all()
    data = world.path_of(tail).read_bytes()
    world.save(tokens)
    world.settle_all()
    world.kill()
    world.path_of(tail).write_bytes(data)

    world.store = BlockStore(ROOMY, world.clock)
    world.disk = BlockDisk(world.folder, ROOT, world.files, world.clock)
    found = sorted(world.disk.scan(), key=lambda header: len(header.tokens), reverse=is_longer_first)
    world.store.attach(world.disk, found, ROOMY)
    settle(world.disk)
    assert not world.path_of(tail).exists()
    assert world.held(tokens) == 120


def test_a_smaller_cap_keeps_whole_beginnings(make_world):
    world = make_world()
    prompts = [prompt(seed, 300) for seed in range(5)]
    for tokens in prompts:
        world.save(tokens)
    world.settle_all()
    world.kill()
    world.disk_cap = 12 * FILE_BYTES
    world.start()
    settle(world.disk)
    assert folder_bytes(world.folder) == 12 * FILE_BYTES
    assert sum(-(-world.held(tokens) // BLOCK_TOKENS) for tokens in prompts) == 12


# Faults


@pytest.fixture
def colliding(monkeypatch):
    """All blocks after the same one have the same key."""

    def key(parent: bytes, _tokens: Sequence[int]) -> bytes:
        return hashlib.sha256(parent).digest()

    monkeypatch.setattr(block_file, "chain_key", key)
    monkeypatch.setattr(block_store, "chain_key", key)


@pytest.mark.usefixtures("colliding")
def test_a_forged_collision_of_keys_is_a_miss(make_world):
    world = make_world()
    one, two = prompt(1, 128), prompt(2, 128)
    world.save(one)
    assert world.held(two) == 0
    world.save(two)
    assert (world.held(one), world.held(two)) == (128, 128)
    world.settle()
    for block in [*chain_of(world.store.find("", one)[-1].block), *chain_of(world.store.find("", two)[-1].block)]:
        world.store._evict_from_ram(block)
    assert world.held(one) == 0, "its files have the other's blocks now"
    assert world.files.count("read") == 1
    settle(world.disk)
    for tokens in (two, one):
        world.held(tokens)
        world.save(tokens)
        assert world.held(tokens) == 128
    world.store.check()


LAST = prompt(99, 150)
CAPS = {"ram_cap": 4 * KV_BYTES, "disk_cap": 6 * FILE_BYTES}


def live(world: World, last: Sequence[int] = LAST) -> None:
    """Do everything that a store does: evictions from RAM and disk, tails superseded, reads, a failure's rest, an end."""
    shared, other = prompt(1, 200), prompt(2, 130)
    world.save(shared[:150])
    world.settle_all()
    world.save(shared)
    world.save(shared[:64] + other)
    world.settle_all()
    for seed in range(3, 6):
        world.save(prompt(seed, 70))
        world.settle_all()
        for tokens in (shared, shared[:64] + other, prompt(seed, 70)):
            world.held(tokens)
    world.now += REST_S
    world.save(last)
    world.settle_all()
    world.held(shared)
    world.now += REST_S
    world.settle()
    world.store.check()
    world.store.close()


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("fault", Fault)
def test_whatever_call_fails_the_store_goes_on(tmp_path, caplog, fault, lasting):
    """A lasting failure also stands for a kill: of what was under way half is there, and nothing is done after it."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    live(World(earlier, **CAPS), prompt(98, 150))
    for number in range(1000):
        folder = shutil.copytree(earlier, tmp_path / str(number))
        files = FaultyFiles(fault, number, lasting=lasting)
        caplog.clear()
        for _ in range(2):
            try:
                live(World(folder, files, **CAPS))
                break
            except OSError:
                assert files.calls[-1] == ("paths", folder.name), "only that the folder cannot be listed is told"
        assert files.peak_bytes <= CAPS["disk_cap"]
        assert len(caplog.records) <= (3 if lasting else 1), "a life has two rests"
        if fault is not Fault.SHORT:
            for path in folder.glob("*.kv"):
                block_file.decode(path.read_bytes())

        again = World(folder, **CAPS)
        settle(again.disk)
        assert not [*folder.glob("*.new")]
        assert folder_bytes(folder) <= CAPS["disk_cap"]
        held = again.held(LAST)
        assert held == len(LAST) or lasting or fault is Fault.SHORT
        again.store.check()
        again.kill()
        if not files.has_failed:
            return
    pytest.fail("no clean pass")


def test_three_thousand_prompts_stay_under_both_caps(make_world, monkeypatch):
    monkeypatch.setattr(block_store, "MAX_EVICTED", 100)
    world = make_world(ram_cap=20 * KV_BYTES, disk_cap=30 * FILE_BYTES + 7)
    choose = random.Random(5)
    for seed in range(3000):
        world.save(prompt(seed, choose.choice([64, 70, 130])))
        world.now += choose.random()
        world.store.work()
        assert world.ram_bytes <= world.ram_cap
        if seed % 20 == 0:
            settle(world.disk)
    world.settle_all()
    assert folder_bytes(world.folder) == world.store._files.used_bytes
    assert world.files.count("write") > 1000
    assert 0.9 * world.disk_cap < world.files.peak_bytes <= world.disk_cap
    assert len(world.store._ram._heap) < 1000
    assert len(world.store._evicted) == 100


# Anything in any order

PATTERNS = [(1,) * 64, (1,) * 40 + (2,) * 24, (3,) * 64, (1,) * 10 + (3,) * 54]
PROMPTS = st.builds(
    lambda patterns, cut: [token for pattern in patterns for token in pattern][:cut],
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4),
    st.integers(1, 256),
)
NAMESPACES = st.sampled_from(["a", "b"])


def test_under_smaller_caps_what_is_worth_least_leaves_and_the_rest_is_found(tmp_path):
    world = World(tmp_path)
    prompts = [[number] * (2 * BLOCK_TOKENS) for number in range(1, 5)]
    for prompt in prompts:
        world.save(prompt)
    world.settle_all()
    world.resize(3 * KV_BYTES, 5 * FILE_BYTES)
    assert (world.ram_bytes, folder_bytes(tmp_path)) == (3 * KV_BYTES, 5 * FILE_BYTES)
    assert world.store.disk_bytes == 5 * FILE_BYTES
    assert sum(map(world.held, prompts)) == 5 * BLOCK_TOKENS
    assert world.held(prompts[-1]) == 2 * BLOCK_TOKENS, "the last one used"
    world.store.check()
    world.resize(8 * KV_BYTES, 8 * FILE_BYTES)
    for prompt in prompts:
        world.save(prompt)
    world.settle_all()
    assert sum(map(world.held, prompts)) == 8 * BLOCK_TOKENS


def test_what_has_no_file_yet_gets_it_before_it_leaves_ram(tmp_path):
    world = World(tmp_path)
    prompt = [1] * (3 * BLOCK_TOKENS)
    world.save(prompt)
    with world.paused():
        world.store.resize(0, ROOMY)
        assert world.ram_bytes == 3 * KV_BYTES, "it is being written"
    world.resize(0, ROOMY)
    assert (world.ram_bytes, folder_bytes(tmp_path)) == (0, 3 * FILE_BYTES)
    assert world.held(prompt) == 3 * BLOCK_TOKENS


class StoreMachine(RuleBasedStateMachine):
    """Against a model that remembers all prompts. Where there is room for all of them, the store must, too."""

    @initialize(
        ram_cap=st.sampled_from([0, 2 * KV_BYTES, 5 * KV_BYTES, ROOMY, ROOMY]),
        disk_cap=st.sampled_from([0, FILE_BYTES, 4 * FILE_BYTES, ROOMY, ROOMY]),
    )
    def begin(self, ram_cap, disk_cap):
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name), ram_cap=ram_cap, disk_cap=disk_cap)
        self.is_roomy = ram_cap == disk_cap == ROOMY
        self.saved = {"a": [], "b": []}

    @rule(namespace=NAMESPACES, tokens=PROMPTS)
    def save(self, namespace, tokens):
        self.world.save(tokens, namespace)
        self.saved[namespace].append(tokens)

    @rule(namespace=NAMESPACES, tokens=PROMPTS)
    def find(self, namespace, tokens):
        known = max((common(each, tokens) for each in self.saved[namespace]), default=0)
        held = self.world.held(tokens, namespace)
        assert held == known if self.is_roomy else held <= known
        if held:
            self.world.store.touch(self.world.store.find(namespace, tokens)[-1].block)

    @rule()
    def work(self):
        self.world.store.work()

    @rule()
    def settle(self):
        self.world.settle()

    @rule()
    def wait(self):
        self.world.now += 0.6 * TAIL_REST_S

    @precondition(lambda self: not self.is_roomy)
    @rule(namespace=NAMESPACES, tokens=PROMPTS)
    def lose(self, namespace, tokens):
        if hits := self.world.store.find(namespace, tokens):
            self.world.store.lose(hits[len(tokens) % len(hits)].block)

    @precondition(lambda self: not self.is_roomy)
    @rule(
        ram_cap=st.sampled_from([0, 2 * KV_BYTES, 5 * KV_BYTES]),
        disk_cap=st.sampled_from([0, FILE_BYTES, 4 * FILE_BYTES]),
    )
    def resize(self, ram_cap, disk_cap):
        self.world.resize(ram_cap, disk_cap)

    @rule()
    def close_and_start(self):
        self.world.store.close()
        self.restart()

    @rule()
    def kill_after_a_second_and_start(self):
        self.world.settle_all()
        self.world.kill()
        self.restart()

    def restart(self):
        self.world.start()
        for namespace, prompts in self.saved.items():
            self.saved[namespace] = [tokens for tokens in prompts if len(tokens) >= BLOCK_TOKENS]

    @invariant()
    def the_caps_hold_and_the_index_is_consistent(self):
        world = self.world
        world.store.check()
        for block in world.store._files._places:
            assert block.parent is not None
            assert block.parent.parent is None or block.parent in world.store._files, "a file follows on none"
        assert world.ram_bytes <= world.ram_cap
        assert world.files.peak_bytes <= world.disk_cap

    def teardown(self):
        if hasattr(self, "world"):
            self.world.kill()
            self.folder.cleanup()


TestAnythingInAnyOrder = StoreMachine.TestCase
TestAnythingInAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
