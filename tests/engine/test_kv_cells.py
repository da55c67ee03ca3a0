"""KvCells over a fake of llama.cpp's memory: what each sequence id holds natively is compared with what its leaf says."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kv_compare import compare_cells
from kv_memory import UnifiedMemory

from pinyon.engine.kv_cells import KvCells

NAMESPACES = st.sampled_from(["", "other"])
TOKENS = st.lists(st.integers(0, 2), max_size=5)


def beginning_in_common(known, tokens):
    return max((n for each in known for n in range(len(tokens) + 1) if each[:n] == tokens[:n]), default=0)


class CellsMachine(RuleBasedStateMachine):
    """Requests come, compute and go; everything that the cells say is predicted from `held`."""

    make_cells = KvCells

    @initialize(
        size=st.integers(8, 32), sequence_ids=st.sampled_from([5, 3, 2, 1]), window=st.sampled_from([0, 1, 2, 4])
    )
    def start(self, size, sequence_ids, window):
        self.sequence_ids = sequence_ids
        self.memory = UnifiedMemory(size, window)
        self.held = {}
        """Leaf -> tokens; the least recently used leaf first."""
        self.namespaces = {}
        self.evicted = []
        self.cells = self.make_cells(
            self.memory, cells=size, sequence_ids=sequence_ids, window=window, before_drop=self.note
        )

    def note(self, leaf):
        """Evicted leaves are idle and can still be exported."""
        assert not leaf.in_use
        assert self.memory.tokens_of(leaf.sequence_id) == self.held[leaf]
        self.evicted.append(leaf)
        self.forget(leaf)

    def forget(self, leaf):
        del self.held[leaf], self.namespaces[leaf]

    def idle(self):
        return [leaf for leaf in self.held if not leaf.in_use]

    def some_leaf_in_use(self, data):
        return data.draw(st.sampled_from([leaf for leaf in self.held if leaf.in_use]))

    def held_in(self, namespace, but=None):
        return [held for leaf, held in self.held.items() if self.namespaces[leaf] == namespace and leaf is not but]

    @rule(data=st.data(), namespace=NAMESPACES, end=TOKENS)
    def answer(self, data, namespace, end):
        """A whole request."""
        prompt = self.some_prompt(data, end)
        leaf = self.begun(namespace, prompt)
        if leaf is not None:
            self.feed(leaf, prompt[leaf.length :])
            self.end(leaf)

    @rule(data=st.data(), namespace=NAMESPACES, end=TOKENS, rows=st.integers(0, 4))
    def begin(self, data, namespace, end, rows):
        prompt = self.some_prompt(data, end)
        leaf = self.begun(namespace, prompt)
        if leaf is not None:
            self.feed(leaf, prompt[leaf.length : leaf.length + rows])

    def some_prompt(self, data, end):
        """Go on from somewhere in what is held, perhaps in another namespace."""
        known = data.draw(st.sampled_from([*self.held.values()] or [[]]))
        return [*known[: len(known) - data.draw(st.integers(0, len(known)))], *end]

    def begun(self, namespace, prompt):
        before, idle, was_full = dict(self.held), self.idle(), len(self.held) == self.sequence_ids
        longest = beginning_in_common(self.held_in(namespace), prompt[:-1])
        room = self.cells.room_for(namespace, prompt)
        self.evicted.clear()
        leaf = self.cells.begin(namespace, prompt)
        if leaf is None:
            assert was_full
            assert not idle
            return None
        if leaf in before:
            assert leaf in idle
            assert before[leaf] == prompt[:longest]
            assert not self.evicted
        else:
            assert len(self.evicted) == was_full
            for victim in self.evicted:
                assert victim is idle[0] or (victim is idle[1] and before[idle[0]][:longest] == prompt[:longest])
                if len(idle) == 1:
                    longest = beginning_in_common(self.held_in(namespace), prompt[:-1])
            self.namespaces[leaf] = namespace
        assert leaf.in_use
        assert self.evicted or room == self.cells.available + leaf.length
        self.held[leaf] = prompt[:longest]
        return leaf

    @precondition(lambda self: any(leaf.in_use for leaf in self.held))
    @rule(data=st.data(), tokens=TOKENS)
    def compute(self, data, tokens):
        self.feed(self.some_leaf_in_use(data), tokens)

    def feed(self, leaf, tokens):
        if self.cells.make_room(len(tokens)):
            assert self.memory.compute(self.cells.ids_of(leaf.sequence_id), tokens)
            self.cells.grow(leaf, tokens)
            self.held[leaf] = self.held[leaf] + tokens

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def make_room(self, data):
        wanted = self.memory.free + data.draw(st.integers(-1, 4))
        self.evicted.clear()
        was_free, available, idle = self.memory.free, self.cells.available, self.idle()
        is_there = self.cells.make_room(wanted)
        assert is_there == (wanted <= available) == (wanted <= self.memory.free)
        assert self.evicted == idle[: len(self.evicted)]
        assert self.evicted or self.memory.free == was_free

    @precondition(lambda self: any(leaf.in_use for leaf in self.held))
    @rule(data=st.data())
    def rest(self, data):
        self.end(self.some_leaf_in_use(data))

    def end(self, leaf):
        kept, namespace = self.held[leaf], self.namespaces[leaf]
        others = self.held_in(namespace, but=leaf)
        self.held[leaf] = self.held.pop(leaf)
        self.cells.rest(leaf)
        assert (leaf in self.held) != (beginning_in_common(others, kept) == len(kept))

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def drop(self, data):
        leaf = data.draw(st.sampled_from([*self.held]))
        own_cells, was_free = leaf.own_cells, self.memory.free
        self.cells.drop(leaf)
        assert self.memory.free - was_free == own_cells
        self.forget(leaf)

    @invariant()
    def everything_agrees(self):
        assert {leaf: leaf.tokens() for leaf in self.held} == self.held
        assert self.cells._tree.leaves == [*self.held]
        compare_cells(self.cells, self.memory, self.held)


TestCells = CellsMachine.TestCase
TestCells.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class KeepsNoTokenToCompute(KvCells):
    def begin(self, namespace, tokens):
        return super().begin(namespace, [*tokens, 0])


class CopiesOneTokenLess(KvCells):
    def _fork(self, match, sequence_id):
        leaf = super()._fork(match, sequence_id)
        if leaf.length:
            self._memory.held_by(sequence_id)[-1].ids.discard(sequence_id)
        return leaf


class CopiesNoGuard(KvCells):
    def _fork(self, match, sequence_id):
        leaf = super()._fork(match, sequence_id)
        self._memory.remove_sequence(self.sequence_ids + sequence_id)
        return leaf


class LeavesTheGuard(KvCells):
    def drop(self, leaf):
        self._tree.remove(leaf)
        self._memory.remove_sequence(leaf.sequence_id)


class ForgetsToGrow(KvCells):
    def grow(self, leaf, tokens):
        super().grow(leaf, tokens[:-1])


class TakesWhatIsInUse(KvCells):
    def begin(self, namespace, tokens):
        match = self.match(namespace, tokens[:-1])
        leaf = match.node.leaf
        if leaf is None or leaf.length != match.length:
            return super().begin(namespace, tokens)
        leaf.in_use = True
        return leaf


class EvictsTheNewest(KvCells):
    def oldest_idle(self, spared=None):
        return next((leaf for leaf in reversed(self._tree.leaves) if not leaf.in_use), None)


class EvictsWhatIsInUse(KvCells):
    def oldest_idle(self, spared=None):
        return next(iter(self._tree.leaves), None)


class SharesNamespaces(KvCells):
    def match(self, _namespace, tokens):
        return super().match("", tokens)


class KeepsWhatIsHeldTwice(KvCells):
    def rest(self, leaf):
        leaf.in_use = False
        self._tree.touch(leaf)


@pytest.mark.parametrize(
    "faulty",
    [
        KeepsNoTokenToCompute,
        CopiesOneTokenLess,
        CopiesNoGuard,
        LeavesTheGuard,
        ForgetsToGrow,
        TakesWhatIsInUse,
        EvictsTheNewest,
        EvictsWhatIsInUse,
        SharesNamespaces,
        KeepsWhatIsHeldTwice,
    ],
)
def test_the_machine_finds_a_planted_fault(faulty):
    class FaultyMachine(CellsMachine):
        make_cells = faulty

    search = settings(TestCells.settings, max_examples=1000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(FaultyMachine, settings=search)


def made(*, size=40, sequence_ids=3, window=0):
    memory = UnifiedMemory(size, window)
    return KvCells(memory, cells=size, sequence_ids=sequence_ids, window=window), memory


def computed(cells, memory, tokens, namespace="", *, guarded=True):
    """Return a leaf in use that holds these tokens, and how many of them were there."""
    leaf = cells.begin(namespace, tokens)
    assert leaf is not None
    known, ids = leaf.length, cells.ids_of(leaf.sequence_id)
    assert cells.make_room(len(tokens) - known)
    assert memory.compute(ids if guarded else ids[:1], tokens[known:])
    cells.grow(leaf, tokens[known:])
    return leaf, known


def rested(cells, memory, tokens, namespace="", *, guarded=True):
    leaf, _ = computed(cells, memory, tokens, namespace, guarded=guarded)
    cells.rest(leaf)
    return leaf


PROMPT = [*range(10, 20)]
SCRATCH = 99


def exported(memory, sequence_id, start, end):
    memory.copy_sequence(sequence_id, SCRATCH, start, end)
    state = memory.export_state(SCRATCH)
    memory.remove_sequence(SCRATCH)
    return state


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize(
    ("prompt", "known"),
    [(PROMPT, 9), (PROMPT[:6], 5), ([*PROMPT, 1], 10), ([*PROMPT[:4], 1, 2], 4), (PROMPT[:1], 0), ([1, 2], 0), ([], 0)],
    ids=["the same", "a strict prefix", "one token more", "another end", "one token", "something else", "nothing"],
)
def test_a_prompt_starts_with_what_is_known_but_for_its_last_token(prompt, known, window):
    cells, memory = made(window=window)
    first = rested(cells, memory, PROMPT)
    donor = exported(memory, first.sequence_id, 0, known)
    leaf = cells.begin("", prompt)
    assert leaf is not None
    assert leaf.length == known
    assert exported(memory, leaf.sequence_id, 0, known) == donor
    assert memory.free == 30


def test_an_idle_leaf_is_taken_over_and_not_copied():
    cells, memory = made()
    first = rested(cells, memory, PROMPT)
    assert computed(cells, memory, [*PROMPT, 1]) == (first, 10)


def test_a_leaf_in_use_is_shared_and_not_taken_over():
    cells, memory = made()
    first, _ = computed(cells, memory, PROMPT)
    other, known = computed(cells, memory, [*PROMPT, 1])
    assert (known, other is first, first.own_cells, other.own_cells) == (10, False, 0, 1)
    compare_cells(cells, memory, [first, other])


def test_what_two_requests_computed_at_once_is_kept_once():
    cells, memory = made()
    one, other = cells.begin("", PROMPT), cells.begin("", PROMPT)
    assert one is not None
    assert other is not None
    for leaf in (one, other):
        assert memory.compute(cells.ids_of(leaf.sequence_id), PROMPT)
        cells.grow(leaf, PROMPT)
    assert cells.free == 20
    compare_cells(cells, memory, [one, other])
    cells.rest(one)
    assert cells.free == 30
    compare_cells(cells, memory, [other])
    cells.rest(other)
    compare_cells(cells, memory, [other])


def test_the_same_prompt_again_and_again_drives_nothing_out():
    cells, memory = made()
    other = rested(cells, memory, [1, 2, 3])
    leaf = rested(cells, memory, PROMPT)
    for _ in range(5):
        assert rested(cells, memory, PROMPT) is not leaf
    compare_cells(cells, memory, [other, leaf])


def test_a_request_that_computed_nothing_leaves_nothing():
    cells, memory = made()
    busy, _ = computed(cells, memory, PROMPT)
    for prompt in (PROMPT, [1, 2]):
        leaf = cells.begin("", prompt)
        assert leaf is not None
        cells.rest(leaf)
        compare_cells(cells, memory, [busy])


def test_without_an_id_theoldest_idle_leaf_goes():
    cells, memory = made()
    old, newer = rested(cells, memory, [1, 2]), rested(cells, memory, [3, 4])
    busy, _ = computed(cells, memory, [5, 6])
    last, _ = computed(cells, memory, [7, 8])
    compare_cells(cells, memory, [newer, busy, last])
    assert last.sequence_id == old.sequence_id


def test_without_an_id_the_leaf_that_a_request_needs_goes_last():
    cells, memory = made()
    needed, _ = rested(cells, memory, [1, 2, 3]), rested(cells, memory, [4, 5])
    busy, _ = computed(cells, memory, [6])
    leaf, known = computed(cells, memory, [1, 2, 9])
    assert known == 2
    compare_cells(cells, memory, [needed, busy, leaf])
    leaf, known = computed(cells, memory, [1, 8])
    assert known == 1
    assert cells.begin("", [1, 2, 3, 4]) is None


def test_while_every_id_is_in_use_a_request_has_to_wait():
    cells, memory = made()
    leaves = [computed(cells, memory, [first])[0] for first in range(3)]
    assert cells.begin("", PROMPT) is None
    cells.rest(leaves[1])
    assert cells.begin("", PROMPT) is not None


def test_while_every_cell_is_in_use_there_is_no_room():
    cells, memory = made(size=12)
    leaf, _ = computed(cells, memory, [*range(12)])
    assert (cells.free, cells.available) == (0, 0)
    assert not cells.make_room(1)
    assert not memory.compute(cells.ids_of(1), [1])
    cells.rest(leaf)
    assert (cells.free, cells.available) == (0, 12)
    assert cells.make_room(12)
    compare_cells(cells, memory, [])


def test_the_room_for_a_request_counts_what_it_shares_once():
    cells, memory = made()
    cells.drop(computed(cells, memory, [9])[0])
    assert cells.room_for("", PROMPT) == 40
    busy, _ = computed(cells, memory, [*PROMPT, 1, 2])
    rested(cells, memory, [3, 4, 5])
    assert cells.room_for("", [7]) == 40 - 12
    assert cells.room_for("", PROMPT) == 40 - 12 + 9
    assert cells.room_for("", [3, 4, 5, 6]) == 40 - 12
    cells.rest(busy)
    assert cells.room_for("", PROMPT) == 40


def test_room_is_made_at_the_cost_of_the_oldest_only():
    cells, memory = made()
    first, second, third = (rested(cells, memory, [token] * 10) for token in range(3))
    cells.rest(computed(cells, memory, [*[0] * 10, 1])[0])
    assert cells.make_room(15)
    compare_cells(cells, memory, [first, third])
    assert first.length == 11
    assert second not in cells._tree.leaves


def test_namespaces_share_nothing():
    cells, memory = made()
    mine = rested(cells, memory, PROMPT, "mine")
    assert cells.match("yours", PROMPT).length == 0
    yours, known = computed(cells, memory, PROMPT, "yours")
    assert (known, cells.free) == (0, 20)
    cells.rest(yours)
    compare_cells(cells, memory, [mine, yours])


@pytest.mark.parametrize(("guarded", "first_position", "known"), [(True, 0, [4, 6, 7, 10]), (False, 3, [0, 0, 7, 10])])
def test_with_a_window_a_neighbour_costs_cells_and_hits_only_without_a_guard(guarded, first_position, known):
    cells, memory = made(window=4)
    leaf = rested(cells, memory, PROMPT, guarded=guarded)
    cells.drop(rested(cells, memory, [1, 2, 3], guarded=guarded))
    assert memory.first_position(leaf.sequence_id) == first_position
    assert [cells.match("", PROMPT[:length]).length for length in (4, 6, 7, 10)] == known


def test_a_sequence_that_the_memory_has_lost_is_no_hit():
    cells, memory = made(window=4)
    leaf = rested(cells, memory, PROMPT)
    memory.remove_sequence(leaf.sequence_id)
    assert cells.match("", PROMPT).length == 0


def lose_an_id(_cells, memory, leaf):
    memory.remove_sequence(leaf.sequence_id)


def lose_a_guard(cells, memory, leaf):
    memory.remove_sequence(cells.ids_of(leaf.sequence_id)[1])


def leave_an_id_behind(_cells, memory, leaf):
    memory.copy_sequence(leaf.sequence_id, 2, 0, 1)


def forget_a_leaf(cells, _memory, leaf):
    cells._tree.remove(leaf)


def forget_to_extend(cells, memory, leaf):
    memory.compute(cells.ids_of(leaf.sequence_id), [1])


def miss_a_cell(_cells, memory, leaf):
    memory.held_by(leaf.sequence_id)[4].ids.clear()


def shift_a_cell(_cells, memory, leaf):
    memory.held_by(leaf.sequence_id)[-1].position += 1


def compute_again(cells, memory, leaf, tokens):
    for sequence_id in cells.ids_of(leaf.sequence_id):
        memory.remove_sequence(sequence_id)
    assert memory.compute(cells.ids_of(leaf.sequence_id), tokens)


def hold_another_prefix(cells, memory, leaf):
    compute_again(cells, memory, leaf, [9, *PROMPT[1:]])


def share_nothing(cells, memory, leaf):
    compute_again(cells, memory, leaf, PROMPT)


def count_too_many_cells(cells, _memory, leaf):
    cells.grow(leaf, [1] * 100)


def keep_an_idle_leaf_that_others_hold(cells, _memory, _leaf):
    cells._tree.fork(cells._tree.match("", PROMPT), 2).in_use = False


def use_an_id_that_is_not_there(cells, _memory, _leaf):
    cells._tree.fork(cells._tree.match("", ()), 3)


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        (lose_an_id, "0 does not hold its leaf's tokens"),
        (lose_a_guard, "3 does not hold its leaf's tokens"),
        (leave_an_id_behind, "cells of nobody"),
        (forget_a_leaf, "cells of nobody"),
        (forget_to_extend, "0 does not hold its leaf's tokens"),
        (miss_a_cell, "sequence 0 has gaps"),
        (shift_a_cell, "sequence 0 has gaps"),
        (hold_another_prefix, "0 does not hold its leaf's tokens"),
        (share_nothing, "cells are free"),
        (count_too_many_cells, "cells used of 40"),
        (keep_an_idle_leaf_that_others_hold, "would give no cell back"),
        (use_an_id_that_is_not_there, "there is no sequence id 3"),
    ],
)
def test_the_comparison_notices_a_planted_fault(fault, noticed):
    cells, memory = made(window=4)
    leaf, _ = rested(cells, memory, PROMPT), rested(cells, memory, [*PROMPT[:4], 1])
    compare_cells(cells, memory, cells._tree.leaves)
    fault(cells, memory, leaf)
    with pytest.raises(AssertionError, match=noticed):
        compare_cells(cells, memory, cells._tree.leaves)


def test_a_state_is_the_same_wherever_its_cells_lie():
    memory = UnifiedMemory(12)
    for sequence_id, tokens in [(0, [1, 2]), (1, [3, 4]), (0, [5, 6]), (1, [7, 8])]:
        assert memory.compute([sequence_id], tokens)
    state = exported(memory, 0, 1, 4)
    memory.remove_sequence(0)
    assert memory.import_state(SCRATCH, state)
    assert memory.export_state(SCRATCH) == state
    assert not memory.import_state(SCRATCH, state[:-1])
    assert memory.held_by(SCRATCH) == []
    assert memory.compute([2], [0] * 6)
    assert not memory.import_state(SCRATCH, state)
