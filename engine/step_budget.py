"""How long a step may take, and how many rows of prompt that is.

A step cannot be interrupted, and everybody who is being answered waits for its end: a prompt beside them is computed in pieces
that keep it short (Sarathi-Serve, arXiv 2403.02310). People read 5 to 10 tokens a second: a token each 150 ms is no wait.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cost_model import CostModel
from pinyon.engine.step_cost import LONGEST_S, Floats, span_of

GROUP: Final = 4
"""Kernels work in groups of so many rows."""


class StepBudget:
    """`max_rows` is what a step can hold, decoding rows included; `stall_s` as in config.Limits."""

    def __init__(self, costs: CostModel, *, max_rows: int, stall_s: float) -> None:
        self.costs = costs
        self.max_rows = max_rows
        self._stall_s = stall_s

    def limit_s(self, lengths: Sequence[int], used: int) -> float:
        """Return how long a step may take while answers are being read that have so many tokens each; `used` cells are in use."""
        if not lengths:
            return max(LONGEST_S, self._stall_s)
        span = span_of(sum(lengths) / len(lengths), used)
        return max(self._stall_s, 2 * self.costs.step_s(len(lengths), span, len(lengths)))

    def step(self, lengths: Sequence[int], used: int) -> "Step":
        """Return an empty step, while such answers are being read."""
        return Step(self, used, self.limit_s(lengths, used))


class Step:
    """One step's rows and its limit."""

    def __init__(self, budget: StepBudget, used: int, limit_s: float) -> None:
        self._budget = budget
        self._used = used
        self._limit_s = limit_s
        self._rows = self._chosen = self._read = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def take(self, rows: int, length: int, *, chosen: int = 0) -> None:
        """Count the next rows of a sequence of so many tokens, and how many tokens are chosen from them."""
        self._rows += rows
        self._chosen += chosen
        self._read += rows * (length + rows // 2)

    @property
    def room(self) -> int:
        """How many more rows a step can hold."""
        return self._budget.max_rows - self._rows

    @property
    def draft_limit_s(self) -> float:
        """How long the step may take with drafts. Who is alone gets so many tokens at once that nobody waits."""
        return max(self._limit_s, LONGEST_S) if self._chosen == 1 else self._limit_s

    def seconds_with(self, rows: NDArray[np.intp], chosen: Floats) -> Floats:
        """Return what the step takes with so many more rows that read as much as those which it has, and so many tokens chosen in all."""
        spans = np.full(len(rows), span_of(self._read / self._rows, self._used))
        return self._budget.costs.steps_s(self._rows + rows, spans, chosen)

    def has_room(self, length: int) -> bool:
        """Whether one more decoding row keeps the limit, that of a sequence of so many tokens."""
        rows = self._rows + 1
        span = span_of((self._read + length) / rows, self._used)
        return (
            rows <= self._budget.max_rows and self._budget.costs.step_s(rows, span, self._chosen + 1) <= self._limit_s
        )

    def chunk_rows(self, length: int) -> int:
        """Return how many more rows, of a prompt of which so many tokens are computed, come quickest within the limit.

        Multiples of a block where there is time for one, since these give the same bits wherever a prompt is cut. 0 where there is
        no time, or no room in a step.
        """
        beside, room = self._rows, self._budget.max_rows - self._rows
        small = (rows for rows in range(1, min(BLOCK_TOKENS, room + 1)) if rows < GROUP or not (beside + rows) % GROUP)
        rows = np.array([*small, *range(BLOCK_TOKENS, room + 1, BLOCK_TOKENS)], int)
        read = (self._read + rows * (length + rows // 2)) / (beside + rows)
        spans = span_of(read, self._used)
        seconds = self._budget.costs.steps_s(beside + rows, spans, self._chosen)
        allowed = seconds <= self._limit_s
        return int(rows[allowed][(rows / seconds)[allowed].argmax()]) if allowed.any() else 0
