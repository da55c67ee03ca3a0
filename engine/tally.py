"""Counts of values by size, as a histogram in Prometheus' sense has them."""

from bisect import bisect_left

import msgspec


class Counts(msgspec.Struct, frozen=True):
    """`counts[i]` values were at most `bounds[i]` and above the bound before it, the last of them above all; `total` is their sum."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total: float = 0.0

    @property
    def number(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return what a share of the values are at most, as Prometheus' histogram_quantile does; there must be values.

        Within a bucket values are taken to lie evenly; those above the highest bound are told as that one.
        """
        rank = share * self.number
        below, at_least = 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return at_least + (bound - at_least) * (rank - below) / count
            below, at_least = below + count, bound
        return at_least


class Tally:
    """Counts values."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def counts(self) -> Counts:
        return Counts(self._bounds, tuple(self._counts), self._total)
