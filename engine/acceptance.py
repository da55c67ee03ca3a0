"""How often drafted tokens come true, by how long the text before them was the same: learned from every token, drafted or not."""

from typing import Final

import numpy as np

from pinyon.engine.step_cost import Floats
from pinyon.engine.suffix_index import LONGEST

_PRIOR: Final = (0.4, 0.55, 0.7, 0.8, 0.88, 0.93)
"""For common ends of 2, 4, 8, 16, 32 and 64 tokens or more."""
_PRIOR_WEIGHT: Final = 4.0
"""A rate is worth so many observations where it is taken over."""
_MEMORY: Final = 64.0
"""So many of the latest observations count; others came from another part of the text."""


def _class_of(length: int) -> int:
    return min(length.bit_length() - 2, len(_PRIOR) - 1)


_CLASSES: Final = np.array([_class_of(max(length, 2)) for length in range(2 * LONGEST + 1)])


class Acceptance:
    """The rates of one answer, on top of what `before` knows: those of all answers until now."""

    def __init__(self, before: "Acceptance | None" = None) -> None:
        self._before = before
        self._hits = np.zeros(len(_PRIOR))
        self._trials = np.zeros(len(_PRIOR))

    def rates(self) -> Floats:
        """Return how often the next token came true, by class."""
        known = np.array(_PRIOR) if self._before is None else self._before.rates()
        rates: Floats = (self._hits + _PRIOR_WEIGHT * known) / (self._trials + _PRIOR_WEIGHT)
        return rates

    def chances(self, length: int, limit: int) -> Floats:
        """Return for each of so many drafted tokens how likely it is that it and all before it come true, after such a common end."""
        chances: Floats = np.cumprod(self.rates()[_CLASSES[length : length + limit]])
        return chances

    def take(self, length: int, *, came_true: bool) -> None:
        """Take note of one token that followed such a common end."""
        at = _class_of(min(length, 2 * LONGEST))
        forgetting = 1 - 1 / _MEMORY
        self._hits[at] = self._hits[at] * forgetting + came_true
        self._trials[at] = self._trials[at] * forgetting + 1
        if self._before is not None:
            self._before.take(length, came_true=came_true)
