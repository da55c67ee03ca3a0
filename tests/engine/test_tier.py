"""Which block leaves first: against a model that looks at all of them each time, and the rules one by one."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinyon.engine.block import Block
from pinyon.engine.tier import _MAX_STALE, Tier


def block(prefill_s: float = 1.0, payload_bytes: int = 1, parent: Block | None = None) -> Block:
    return Block(b"", parent, 0, (), payload_bytes, prefill_s)


def victims(tier: Tier) -> list[Block]:
    """Return all blocks in the order in which they would leave."""
    order = []
    while (victim := tier.next_victim()) is not None:
        tier.remove(victim)
        order.append(victim)
    return order


def filled(*blocks: Block, cap_bytes: int = 1000) -> Tier:
    tier = Tier(cap_bytes)
    for each in blocks:
        tier.add(each, each.payload_bytes)
    return tier


def test_what_saves_the_least_per_byte_leaves_first():
    dear, large, cheap = block(9.0), block(9.0, payload_bytes=10), block(0.5)
    assert victims(filled(dear, large, cheap)) == [cheap, large, dear]


def test_equals_leave_in_the_order_of_their_last_use():
    first, second, third = block(), block(), block()
    tier = filled(first, second, third)
    tier.touch(first)
    assert victims(tier) == [second, third, first]


def test_a_block_leaves_after_all_that_follow_it():
    parent = block(0.1)
    children = [block(5.0, parent=parent), block(6.0, parent=parent)]
    grandchild = block(7.0, parent=children[0])
    assert victims(filled(parent, *children, grandchild)) == [children[1], grandchild, children[0], parent]


def test_a_use_counts_for_what_comes_before():
    old, other = block(5.0), block(5.0)
    child = block(1.0, parent=old)
    tier = filled(old, child, other)
    tier.touch(child)
    assert victims(tier) == [child, other, old]


def test_what_nobody_uses_gives_way_however_dear_it_was():
    dear = block(5.0)
    tier = filled(dear)
    order = []
    for _ in range(5):
        tier.add(block(1.0), 1)
        victim = tier.next_victim()
        assert victim is not None
        tier.remove(victim)
        order.append(victim)
    assert order.index(dear) == 4, "the fifth has the same rank, and is younger"


def test_what_is_held_stays_until_it_is_released_as_often():
    held, other = block(1.0), block(2.0)
    tier = filled(held, other)
    tier.hold(held)
    tier.hold(held)
    tier.release(held)
    assert tier.next_victim() is other
    tier.release(held)
    assert tier.next_victim() is held


def test_a_hold_outlives_what_is_held():
    gone = block()
    tier = filled(gone)
    tier.hold(gone)
    tier.remove(gone)
    tier.release(gone)
    assert victims(tier) == []


def test_bytes_are_counted():
    one, two = block(payload_bytes=30), block(payload_bytes=70)
    tier = filled(one, two, cap_bytes=100)
    assert (tier.used_bytes, len(tier)) == (100, 2)
    assert not tier.has_room(1)
    tier.remove(one)
    tier.remove(one)
    assert (tier.used_bytes, len(tier)) == (70, 1)
    assert tier.has_room(30)


def test_more_than_the_cap_is_not_taken():
    tier = filled(block(payload_bytes=60), cap_bytes=100)
    with pytest.raises(AssertionError, match="make room first"):
        tier.add(block(payload_bytes=41), 41)


def test_uses_do_not_make_the_heap_grow():
    blocks = [block() for _ in range(10)]
    tier = filled(*blocks)
    for _ in range(10_000):
        tier.touch(random.choice(blocks))
        assert len(tier._heap) <= _MAX_STALE * len(blocks)


def test_blocks_that_come_and_go_leave_nothing_behind():
    tier = Tier(10)
    parent = block()
    tier.add(parent, 1)
    for _ in range(10_000):
        tier.add(block(parent=parent), 1)
        if not tier.has_room(1):
            victim = tier.next_victim()
            assert victim is not None
            tier.remove(victim)
    assert len(tier._heap) <= _MAX_STALE * 10
    assert len(tier._holds) == 1


@dataclass
class Known:
    """What the model remembers of a block: the bar at its last use or a descendant's, and when that was."""

    bar: float
    use: int


class Model:
    """GreedyDual-Size over leaves, without a heap: every use is told to all of the chain."""

    def __init__(self) -> None:
        self.known: dict[Block, Known] = {}
        self.uses = 0
        self.bar = 0.0

    def use(self, used: Block) -> None:
        self.uses += 1
        each: Block | None = used
        while each in self.known:
            self.known[each] = Known(self.bar, self.uses)
            each = each.parent

    def victim(self, held: Block | None) -> Block | None:
        parents = {each.parent for each in self.known}
        leaves = [each for each in self.known if each not in parents and each is not held]
        if not leaves:
            return None
        victim = min(leaves, key=self.rank)
        self.bar = max(self.bar, self.rank(victim)[0])
        return victim

    def rank(self, of: Block) -> tuple[float, int]:
        return self.known[of].bar + of.saved_s_per_byte, self.known[of].use


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "touch", "evict", "evict held", "remove"]), st.integers(0, 1000)),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_the_order_is_that_of_the_model(operations):
    tier, model = Tier(10_000), Model()
    for operation, number in operations:
        here = [*model.known]
        chosen = here[number % len(here)] if here else None
        if operation == "add":
            new = block(prefill_s=number % 7 + 1, parent=chosen if number % 3 else None)
            tier.add(new, 1)
            model.known[new] = Known(0, 0)
            model.use(new)
        elif chosen is None:
            assert tier.next_victim() is None
        elif operation == "touch":
            tier.touch(chosen)
            model.use(chosen)
        elif operation == "remove":
            parents = {each.parent for each in here}
            if chosen not in parents:
                tier.remove(chosen)
                del model.known[chosen]
        else:
            held = chosen if operation == "evict held" else None
            if held is not None:
                tier.hold(held)
            victim = tier.next_victim()
            assert victim is model.victim(held)
            if held is not None:
                tier.release(held)
            if victim is not None:
                tier.remove(victim)
                del model.known[victim]
        assert tier.used_bytes == len(tier) == len(model.known)
