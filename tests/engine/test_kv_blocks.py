"""KvBlocks over the fake memory: what is stored, what comes back where, and that every cell is what computing it gives."""

from collections import deque

import pytest
from fake_disk import FakeDisk
from fakes import make_kv, make_store
from kv_compare import MOVE_S, PrefixMemory, compare_blocks, compare_kv

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cache_report import COMPARED_TOKENS, Gap, Miss
from pinyon.engine.cost_model import CostModel
from pinyon.engine.kv_blocks import READ_AHEAD, KvBlocks, Restore

TEXT = [*range(256), *range(255, -1, -1)]
"""512 tokens that are nowhere like themselves."""
OTHER = [300 + token % 100 for token in TEXT]
SCRATCH = 16


class Room:
    """A context, and requests in it that take what is there and compute the rest."""

    def __init__(self, store=None, *, cells=1024, window=0, costs=None):
        self.memory = PrefixMemory(cells, window)
        self.store = store or make_store()
        self.kv = make_kv(self.memory, store=self.store, window=window, costs=costs)
        self.cells, self.blocks = self.kv._cells, self.kv._blocks

    def begin(self, tokens, namespace=""):
        leaf = self.cells.begin(namespace, tokens)
        return leaf, self.blocks.begin(leaf, namespace, tokens)

    def restore(self, restore, budget_s=1.0):
        self.blocks.restore(restore, budget_s, may_wait=False)
        self.compare()

    def compute(self, leaf, tokens):
        rest = tokens[leaf.length :]
        assert self.cells.make_room(len(rest))
        assert self.memory.compute(self.cells.ids_of(leaf.sequence_id), rest)
        self.cells.grow(leaf, rest)
        assert leaf.tokens() == tokens
        self.compare()

    def ask(self, tokens, namespace=""):
        """Take what is there, compute the rest, leave it; return how many tokens came back, and the leaf."""
        leaf, restore = self.begin(tokens, namespace)
        while not restore.is_over:
            self.restore(restore)
        self.compute(leaf, tokens)
        self.cells.rest(leaf)
        self.compare()
        return restore.ram_tokens + restore.disk_tokens, leaf

    def save(self):
        self.blocks.save(float("inf"))
        assert not self.blocks.has_unsaved
        self.compare()

    def empty(self):
        """Drop everything from the context."""
        assert self.cells.make_room(self.cells.cells)
        self.compare()

    def compare(self):
        compare_kv(self.kv, self.memory)
        compare_blocks(self.kv)
        assert self.memory.held_by(SCRATCH) == []

    @property
    def stored(self):
        """The start and the end of each stored block."""
        found, waiting = [], [*self.store._roots.values()]
        while waiting:
            block = waiting.pop()
            found += [(block.start, block.end)] * bool(block.tokens)
            waiting += block.children
        return sorted(found)


@pytest.fixture
def room():
    return Room()


# Out of the context


def test_whole_blocks_are_stored_while_a_request_computes_and_the_end_when_it_rests(room):
    leaf, _ = room.begin(TEXT[:200])
    for length, stored in [(63, []), (64, [(0, 64)]), (150, [(0, 64), (64, 128)])]:
        room.compute(leaf, TEXT[:length])
        room.save()
        assert room.stored == stored
    room.cells.rest(leaf)
    room.save()
    assert room.stored == [(0, 64), (64, 128), (128, 150)]


def test_what_has_to_go_is_stored_before_it_does(room):
    room.ask(TEXT[:150])
    assert room.stored == []
    room.empty()
    assert room.stored == [(0, 64), (64, 128), (128, 150)]


def test_what_may_be_wrong_is_not_stored(room):
    leaf, _ = room.begin(TEXT[:150])
    room.compute(leaf, TEXT[:150])
    room.blocks.forget(leaf)
    room.cells.drop(leaf)
    room.save()
    assert room.stored == []


def test_a_longer_end_takes_the_place_of_a_shorter_one(room):
    for length, stored in [(70, [(64, 70)]), (80, [(64, 80)]), (128, [(64, 128)]), (130, [(64, 128), (128, 130)])]:
        room.ask(TEXT[:length])
        room.save()
        assert room.stored == [(0, 64), *stored]


def test_what_is_stored_is_not_stored_again(room, monkeypatch):
    room.ask(TEXT[:150])
    room.save()
    room.empty()
    monkeypatch.setattr(room.memory, "export_state", lambda _id: pytest.fail("exported"))
    for prompt in (TEXT[:150], TEXT[:128]):
        room.ask(prompt)
        room.save()
        room.empty()


def test_branches_have_blocks_of_their_own_after_the_common_ones(room):
    for end in (TEXT[70:200], OTHER[:100]):
        room.ask(TEXT[:70] + end)
    room.save()
    assert room.stored == [(0, 64), (64, 128), (64, 128), (128, 170), (128, 192), (192, 200)]


def test_what_the_store_refuses_is_not_tried_again(monkeypatch):
    room = Room(make_store(blocks=2))
    room.ask(TEXT[:400])
    room.save()
    assert room.stored == [(0, 64), (64, 128)]
    monkeypatch.setattr(room.memory, "export_state", lambda _id: pytest.fail("exported"))
    room.save()


@pytest.mark.parametrize("moves", range(1, 5))
def test_storing_stops_when_its_time_is_over(room, moves):
    room.ask(TEXT[:256])
    room.blocks.save((moves - 0.5) * MOVE_S)
    assert len(room.stored) == moves
    assert room.blocks.has_unsaved == (moves < 4)


# Into the context

KEPT = 150


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TEXT[:150], 149),
        (TEXT[:151], 150),
        (TEXT[:300], 150),
        (TEXT[:129], 128),
        (TEXT[:128], 127),
        (TEXT[:64], 63),
        (TEXT[:2], 1),
        (TEXT[:1], 0),
        (TEXT[:140] + OTHER[:100], 140),
        (TEXT[:100] + OTHER[:100], 100),
        (TEXT[:30] + OTHER[:100], 30),
        (TEXT[64:150], 0),
        (OTHER[:100], 0),
    ],
)
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("resident", [0, 1, 30, 64, 100, 140])
def test_a_prompt_gets_back_what_is_stored_beyond_what_is_in_the_context(prompt, tokens, window, resident):
    room = Room(window=window)
    room.ask(TEXT[:KEPT])
    room.empty()
    if resident:
        room.ask(TEXT[: min(resident, KEPT)], namespace="x")  # cells that lie in between
        leaf, _ = room.begin(TEXT[:resident])
        room.blocks.forget(leaf)
        room.compute(leaf, TEXT[:resident])
    leaf, restore = room.begin(prompt)
    held = leaf.length
    room.restore(restore)
    assert restore.is_over
    assert (leaf.length, restore.ram_tokens, restore.disk_tokens) == (max(held, tokens), leaf.length - held, 0)
    room.compute(leaf, prompt)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (TEXT[:151], 150),
        (TEXT[:150], 128),
        (TEXT[:129], 128),
        (TEXT[:128], 64),
        (TEXT[:100] + OTHER[:100], 64),
        (TEXT[:30] + OTHER[:100], 0),
    ],
)
def test_with_a_window_narrower_than_a_block_blocks_serve_whole_only(prompt, tokens):
    room = Room(window=BLOCK_TOKENS - 1)
    room.ask(TEXT[:KEPT])
    room.empty()
    assert room.ask(prompt)[0] == tokens


def exported(room, leaf):
    """The states of a sequence's blocks."""
    states = []
    for start in range(0, leaf.length, 64):
        room.memory.copy_sequence(leaf.sequence_id, SCRATCH, start, start + 64)
        states.append(room.memory.export_state(SCRATCH))
        room.memory.remove_sequence(SCRATCH)
    return states


def test_a_fragmented_context_gets_back_the_same_bytes(room):
    _, donor = room.ask(TEXT[:200])
    room.save()
    fragmented = Room(room.store, cells=300)
    leaves = [fragmented.begin([number] * 10, "x")[0] for number in range(8)]
    for length in range(1, 11):
        for number, leaf in enumerate(leaves):
            fragmented.compute(leaf, [number] * length)
    for leaf in leaves[::2]:
        fragmented.blocks.forget(leaf)
        fragmented.cells.drop(leaf)
    came_back, leaf = fragmented.ask(TEXT[:200])
    assert came_back == 199
    places = [index for index, cell in enumerate(fragmented.memory.cells) if leaf.sequence_id in cell.ids]
    assert places != [*range(places[0], places[0] + 200)]
    assert exported(fragmented, leaf) == exported(room, donor)


def test_a_restore_takes_one_block_at_least_and_then_its_time(room):
    room.ask(TEXT[:300])
    room.empty()
    _, restore = room.begin(TEXT[:300])
    brought = []
    for budget_s in (0.0, 1.5 * MOVE_S, 1.0):
        room.restore(restore, budget_s)
        brought.append(restore.ram_tokens)
    assert brought == [64, 192, 299]
    assert restore.is_over


def test_to_make_room_others_are_stored_first():
    room = Room(cells=200)
    room.ask(TEXT[:150])
    room.ask(OTHER[:150])
    assert room.stored == [(0, 64), (64, 128), (128, 150)]
    assert room.ask(TEXT[:150])[0] == 149
    assert len(room.stored) == 6
    assert room.ask(OTHER[:150])[0] == 149


@pytest.mark.parametrize(("busy_cells", "tokens"), [(136, 9), (137, 0)])
def test_a_block_of_which_a_part_serves_needs_room_for_all_of_it(busy_cells, tokens):
    room = Room(cells=200)
    room.ask(TEXT[:64])
    room.empty()
    room.compute(room.begin(OTHER[:busy_cells])[0], OTHER[:busy_cells])
    leaf, restore = room.begin(TEXT[:10])
    room.restore(restore)
    assert (restore.is_over, leaf.length) == (True, tokens)
    assert (restore.gap == Gap(Miss.NO_ROOM, 0)) == (tokens == 0)
    assert room.stored == [(0, 64)], "the block is as good as it was"
    room.compute(leaf, TEXT[:10])


def test_a_restore_whose_cells_are_taken_by_others_is_over():
    room = Room(cells=200)
    room.ask(TEXT[:100])
    room.empty()
    busy, _ = room.begin(OTHER[:150])
    leaf, restore = room.begin(TEXT[:100])
    room.compute(busy, OTHER[:150])
    room.restore(restore)
    assert (restore.is_over, leaf.length, restore.ram_tokens) == (True, 0, 0)
    assert restore.gap == Gap(Miss.NO_ROOM, 0)


def test_what_is_dearer_than_computing_does_not_come_back():
    costs = CostModel()
    room = Room(costs=costs)
    room.ask(TEXT[:150])
    room.empty()
    assert not room.begin(TEXT[:150])[1].is_over
    costs.measure_restore(1, costs.prefill_s(1) * 64)
    assert room.begin(TEXT[:150], "")[1].is_over


def test_restores_are_measured():
    costs = CostModel()
    room = Room(costs=costs)
    room.ask(TEXT[:150])
    room.empty()
    guess = costs.restore_s(1000)
    room.ask(TEXT[:150])
    assert costs.restore_s(1000) != guess


# From the disk


def on_disk(tokens):
    """A room whose store has tokens on disk only."""
    disk = FakeDisk()
    first = Room(make_store(disk=disk))
    first.ask(tokens)
    first.save()
    first.store._clock = lambda: float("inf")
    first.store.work()
    return Room(make_store(disk=disk)), disk


def test_a_few_files_are_read_ahead():
    room, disk = on_disk(TEXT[:512])
    disk.is_slow = True
    leaf, restore = room.begin(TEXT[:512])
    room.restore(restore)
    assert (len(disk.reads), leaf.length) == (READ_AHEAD, 0)
    states = [state for _, state in sorted(disk.files.values(), key=lambda file: file[0].start)]
    disk.reads[1].set_result(states[1])
    room.restore(restore)
    assert leaf.length == 0, "blocks come back in their order"
    disk.reads[0].set_result(states[0])
    room.restore(restore)
    assert (len(disk.reads), leaf.length) == (READ_AHEAD + 2, 128)
    assert (restore.ram_tokens, restore.disk_tokens) == (0, 128)


def test_tokens_are_counted_to_where_their_bytes_came_from():
    room, disk = on_disk(TEXT[:200])
    leaf, restore = room.begin(TEXT[:128])
    room.restore(restore)
    room.compute(leaf, TEXT[:128])
    assert (restore.ram_tokens, restore.disk_tokens) == (0, 127)
    first = next(iter(room.store.root("").children))
    first.payload = room.store.read(first).result()
    room.cells.rest(leaf)
    room.empty()
    _, restore = room.begin(TEXT[:200])
    room.restore(restore)
    assert (restore.ram_tokens, restore.disk_tokens) == (64, 135)
    assert disk.files


def test_bytes_that_left_ram_after_they_were_asked_for_still_count_as_ram(room):
    room.ask(TEXT[:200])
    room.empty()
    _, restore = room.begin(TEXT[:200])
    room.restore(restore, budget_s=0.0)
    for block in [hit.block for hit in restore.hits]:
        block.payload = None
    room.restore(restore)
    assert (restore.ram_tokens, restore.disk_tokens) == (199, 0)


# Faults


def visit(room):
    """Prompts that branch, leave the context and come back."""
    for prompt in (
        TEXT[:200],
        OTHER[:64] + TEXT[64:200],
        TEXT[:100],
        OTHER[:64] + TEXT[64:150],
        TEXT[:170] + OTHER,
        TEXT[:30] + OTHER,
    ):
        for _ in range(2):
            room.ask(prompt)
            room.save()
            room.empty()


def test_a_visit_leaves_everything_right(room):
    visit(room)
    assert len(room.stored) > 10


class GrowsNot(KvBlocks):
    def _put_back(self, leaf, hit, state):
        grow, self._cells.grow = self._cells.grow, lambda _leaf, _tokens: None
        is_back = super()._put_back(leaf, hit, state)
        self._cells.grow = grow
        return is_back


class GrowsByTheWholeBlock(KvBlocks):
    def _put_back(self, leaf, hit, state):
        start = leaf.length
        is_back = super()._put_back(leaf, hit, state)
        self._cells.grow(leaf, hit.block.tokens[leaf.length - hit.block.start :] if leaf.length > start else ())
        return is_back


class RestoresTheWholeBlock(KvBlocks):
    def _put_back(self, leaf, hit, state):
        end = hit.block.end
        copy = self._memory.copy_sequence
        self._memory.copy_sequence = lambda source, target, start, _end: copy(source, target, start, end)
        is_back = super()._put_back(leaf, hit, state)
        self._memory.copy_sequence = copy
        return is_back


class RestoresOnePositionLater(KvBlocks):
    def _put_back(self, leaf, hit, state):
        copy = self._memory.copy_sequence
        self._memory.copy_sequence = lambda source, target, start, end: copy(source, target, start + 1, end)
        is_back = super()._put_back(leaf, hit, state)
        self._memory.copy_sequence = copy
        return is_back


class RestoresInAnotherOrder(KvBlocks):
    def begin(self, leaf, namespace, tokens):
        restore = super().begin(leaf, namespace, tokens)
        return Restore(leaf, deque(reversed(restore.hits)), restore.patient_until)


class LeavesTheScratch(KvBlocks):
    def _export(self, leaf, before, tokens):
        remove, self._memory.remove_sequence = self._memory.remove_sequence, lambda _id: None
        block = super()._export(leaf, before, tokens)
        self._memory.remove_sequence = remove
        return block


class StoresUnderTheFirstBlock(KvBlocks):
    def _export(self, leaf, before, tokens):
        root = before
        while root.parent is not None:
            root = root.parent
        first = next(iter(root.children), root)
        wrong = first if before.start == first.start else before
        return super()._export(leaf, wrong, tokens)


class StoresShiftedTokens(KvBlocks):
    def _export(self, leaf, before, tokens):
        return super()._export(leaf, before, [*tokens[1:], tokens[0]])


class StoresOneCellLess(KvBlocks):
    def _export(self, leaf, before, tokens):
        copy = self._memory.copy_sequence
        self._memory.copy_sequence = lambda source, target, start, end: copy(source, target, start, end - 1)
        block = super()._export(leaf, before, tokens)
        self._memory.copy_sequence = copy
        return block


class FlipsABit(KvBlocks):
    def _export(self, leaf, before, tokens):
        block = super()._export(leaf, before, tokens)
        if block is not None:
            block.payload = block.payload[:-1] + bytes([block.payload[-1] ^ 4])
        return block


class StoresAfterABlockThatServedInPart(KvBlocks):
    def begin(self, leaf, namespace, tokens):
        restore = super().begin(leaf, namespace, tokens)
        if restore.hits:
            self._stored[leaf] = restore.hits[-1].block
        return restore


@pytest.mark.parametrize(
    "faulty",
    [
        GrowsNot,
        GrowsByTheWholeBlock,
        RestoresTheWholeBlock,
        RestoresOnePositionLater,
        RestoresInAnotherOrder,
        LeavesTheScratch,
        StoresUnderTheFirstBlock,
        StoresShiftedTokens,
        StoresOneCellLess,
        FlipsABit,
        StoresAfterABlockThatServedInPart,
    ],
)
def test_the_comparison_notices_a_planted_fault(room, faulty):
    room.blocks.__class__ = faulty
    with pytest.raises(AssertionError):
        visit(room)


# Why no more comes back


def gap_of(room, tokens):
    leaf, restore = room.begin(tokens)
    room.cells.drop(leaf)
    room.blocks.forget(leaf)
    return restore.gap


def test_a_gap_tells_how_the_stored_text_goes_on_past_its_blocks(room):
    room.ask(TEXT[:300])
    room.empty()
    for at in (10, 64, 100, 130):
        gap = gap_of(room, TEXT[:at] + OTHER[:300])
        assert gap == Gap(Miss.DIVERGED, at, tuple(TEXT[at:300][:COMPARED_TOKENS]), tuple(OTHER[:COMPARED_TOKENS]))


def test_what_had_to_make_room_is_told_before_what_begins_alike():
    room = Room(make_store(blocks=2))
    like = [*TEXT[:10], *OTHER[:118]]
    room.ask(TEXT[:128])
    room.empty()
    room.ask(like)
    room.empty()
    assert gap_of(room, TEXT[:128]) == Gap(Miss.EVICTED, 10)
    room.ask(like)
    assert gap_of(room, TEXT[:128]) == Gap(Miss.EVICTED, 10), "also where the context has as much of it"
    assert gap_of(room, TEXT[:20] + OTHER[:100]).miss is Miss.DIVERGED


def test_what_others_have_is_told_before_what_begins_alike():
    other = Room()
    other.ask(TEXT[:200])
    other.save()
    blocks = [block for root in other.store._roots.values() for block in root.with_descendants()]
    disk = FakeDisk()
    store = make_store(disk=disk)
    store.attach(disk, (), 1 << 20, elsewhere=frozenset(block.key for block in blocks))
    room = Room(store)
    assert gap_of(room, TEXT[:200]) == Gap(Miss.OTHER_MODEL_OR_SETTINGS, 0)
    assert gap_of(room, OTHER[:200]) == Gap(Miss.NEW, 0)
    room.ask(TEXT[:10] + OTHER[:100])
    room.ask(OTHER[:200])
    room.empty()
    assert gap_of(room, TEXT[:200]) == Gap(Miss.OTHER_MODEL_OR_SETTINGS, 10)
    assert gap_of(room, TEXT[:10] + OTHER[:10] + TEXT[:100]).miss is Miss.DIVERGED
    room.ask(TEXT[:64] + OTHER[:100])
    room.empty()
    assert gap_of(room, TEXT[:200]) == Gap(Miss.OTHER_MODEL_OR_SETTINGS, 64)
    assert gap_of(room, TEXT[:64] + OTHER[:20] + TEXT[:100]).miss is Miss.DIVERGED


def test_a_block_that_cannot_be_used_in_part_is_not_told_as_another_text():
    room = Room(window=10)
    room.ask(TEXT[:128])
    room.empty()
    assert gap_of(room, TEXT[:30] + OTHER[:100]) == Gap(Miss.UNAVAILABLE, 0)
    assert gap_of(room, TEXT[:94] + OTHER[:100]) == Gap(Miss.UNAVAILABLE, 64)
    assert gap_of(room, OTHER[:100]).miss is Miss.DIVERGED


def test_as_long_as_nobody_knows_what_is_on_disk_that_is_told():
    room = Room()
    room.store.awaits_disk = True
    for tokens in (TEXT[:100], TEXT[:30] + OTHER[:70]):
        assert gap_of(room, tokens).miss is Miss.NOT_READY
        room.ask(tokens)
        room.empty()
    room.kv.use_disk(None)
    assert gap_of(room, TEXT[:30] + TEXT[:70]).miss is Miss.DIVERGED
