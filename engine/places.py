"""When there is a place for somebody who waits: cells and sequence ids come free as those end who have them."""

import heapq
import itertools
from typing import NamedTuple


class Need(NamedTuple):
    """What somebody takes: cells, and the seconds for which. A long one has no other long one beside it, who is `alone` nobody."""

    cells: int
    seconds: float
    is_long: bool = False
    is_alone: bool = False


class Places:
    """`cells` and `ids` are what can be taken; `now_s` is when whoever took a place last got it."""

    def __init__(self, cells: int, ids: int) -> None:
        self.now_s = 0.0
        self._cells = cells
        self._ids = ids
        self._longs = 0
        self._is_alone = False
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, Need]] = []

    def hold(self, need: Need) -> None:
        """Take a place now, whether there is one or not."""
        self._cells -= need.cells
        self._longs += need.is_long
        self._is_alone = need.is_alone
        heapq.heappush(self._ends, (self.now_s + need.seconds, next(self._numbers), need))

    def take(self, need: Need) -> None:
        """Take a place as soon as there is one; where nobody is, there always is."""
        while self._ends and self._is_too_much(need):
            self.now_s, _, left = heapq.heappop(self._ends)
            self._cells += left.cells
            self._longs -= left.is_long
            self._is_alone = False  # who was alone has just left
        self.hold(need)

    def _is_too_much(self, need: Need) -> bool:
        is_full = need.cells > self._cells or len(self._ends) >= self._ids
        return is_full or self._is_alone or need.is_alone or (need.is_long and self._longs > 0)
