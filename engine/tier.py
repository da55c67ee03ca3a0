"""A capped number of bytes for blocks, and which block has to leave when they run out.

A block goes before its parent, whose absence would make it useless. Among those that may go it is the one that saves the least
computing per byte, aged: GreedyDual-Size (Cao and Irani, 1997; Young, 1994). What has left raises the bar for those that
come, so an old block that nobody asked for gives way in the end, however dear it was. Equals go in the order of their last use.
"""

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import count

from pinyon.engine.block import Block

_MAX_STALE = 8
"""Entries of the heap for each block, at most: every use leaves an old one behind."""


@dataclass(slots=True)
class _Place:
    size_bytes: int
    used: tuple[float, int]
    """The bar at the last use of the block, or of what followed it and has left, and the number of that use."""


class Tier:
    """Blocks of at most `cap_bytes` together."""

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.used_bytes = 0
        self._places: dict[Block, _Place] = {}
        self._holds: Counter[Block] = Counter()
        self._heap: list[tuple[float, int, int, Block]] = []
        """Rank, a number that settles ties, and the block; an entry counts as long as the rank is the block's."""
        self._uses = count()
        self._pushes = count()
        self._bar = 0.0

    def __contains__(self, block: Block) -> bool:
        return block in self._places

    def __len__(self) -> int:
        return len(self._places)

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.cap_bytes

    def add(self, block: Block, size_bytes: int) -> None:
        """Take a block, whose parent then stays as long as it; there must be room."""
        assert block not in self._places, "a block is added twice"
        assert self.has_room(size_bytes), "make room first"
        self._places[block] = _Place(size_bytes, (self._bar, next(self._uses)))
        self.used_bytes += size_bytes
        if block.parent is not None:
            self.hold(block.parent)
        self._push(block)

    def touch(self, block: Block) -> None:
        """Count a use of a block that is here. It counts for those before it, too, as soon as they may go."""
        self._places[block].used = (self._bar, next(self._uses))
        self._push(block)

    def hold(self, block: Block) -> None:
        """Keep a block, here or not, from becoming a victim until it is released as often."""
        self._holds[block] += 1

    def is_held(self, block: Block) -> bool:
        """Whether a block has to stay: others here follow it, or it is in use."""
        return block in self._holds

    def release(self, block: Block) -> None:
        self._holds[block] -= 1
        if not self._holds[block]:
            del self._holds[block]
            if block in self._places:
                self._push(block)

    def remove(self, block: Block) -> None:
        """Let a block go, whatever its rank. One that is not here is none of ours."""
        place = self._places.pop(block, None)
        if place is None:
            return
        self.used_bytes -= place.size_bytes
        if block.parent is not None:
            if (before := self._places.get(block.parent)) is not None:
                before.used = max(before.used, place.used)
            self.release(block.parent)

    def next_victim(self) -> Block | None:
        """Return the block that should leave first, None where there is none. It stays until it is removed."""
        while self._heap:
            priority, use, _, block = self._heap[0]
            if block in self._places and self._rank(block) == (priority, use) and block not in self._holds:
                self._bar = max(self._bar, priority)
                return block
            heapq.heappop(self._heap)  # it has left, was used since, or is held: its release will push it again
        return None

    def _rank(self, block: Block) -> tuple[float, int]:
        bar, use = self._places[block].used
        return bar + block.saved_s_per_byte, use

    def _push(self, block: Block) -> None:
        heapq.heappush(self._heap, self._entry(block))
        if len(self._heap) > _MAX_STALE * len(self._places):
            self._heap = [self._entry(each) for each in self._places]
            heapq.heapify(self._heap)

    def _entry(self, block: Block) -> tuple[float, int, int, Block]:
        return *self._rank(block), next(self._pushes), block
