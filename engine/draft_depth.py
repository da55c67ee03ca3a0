"""How many drafted tokens are worth their rows: as many as make the step give the most tokens a second.

One more drafted token pays only while the chance that it and all before it come true is more than the best speed so far times what its
row adds to the step. Steps' costs are not smooth in their rows, so all numbers of rows are compared
(the goodput of TurboSpec, arXiv 2406.14066).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pinyon.engine.step_cost import Floats

Seconds: TypeAlias = Callable[[NDArray[np.intp], Floats], Floats]
"""What a step takes with so many more rows, and so many tokens chosen from all of them."""

MARGIN: Final = 1.03
"""Drafts have to promise so much more than none: predictions are not exact."""


class Depths(NamedTuple):
    """How many tokens are drafted for each sequence; what the step is predicted to take, and would without drafts."""

    each: list[int]
    seconds: float
    plain_s: float


def depths(chances: Sequence[Floats], seconds: Seconds, *, rows: int, limit_s: float) -> Depths:
    """Return the depths with the most tokens a second; none where drafts are not clearly quicker.

    `chances` are those of each sequence's drafted tokens: that a token and all before it come true, so they fall. All sequences
    together get up to `rows` rows, and with drafts the step may take `limit_s`.
    """
    every = np.concatenate(chances)
    owners = np.repeat(np.arange(len(chances)), [len(each) for each in chances])
    best_first = np.argsort(-every, kind="stable")[: max(rows, 0)]  # those of a sequence stay in their order
    tokens = len(chances) + np.concatenate(([0.0], np.cumsum(every[best_first])))
    times = seconds(np.arange(len(tokens)), tokens)
    speeds = np.where(times <= limit_s, tokens / times, 0.0)
    best = int(speeds.argmax())
    if speeds[best] < MARGIN * tokens[0] / times[0]:
        best = 0
    each: list[int] = np.bincount(owners[best_first[:best]], minlength=len(chances)).tolist()
    return Depths(each, float(times[best]), float(times[0]))
