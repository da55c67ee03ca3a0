"""How long a step may take, and how many rows of prompt that is.

A step cannot be interrupted, and everybody who is being answered waits for its end: a prompt beside them is computed in pieces
that keep it short (Sarathi-Serve, arXiv 2403.02310). People read 5 to 10 tokens a second: a token each 150 ms is no wait.
"""

from typing import Final

import numpy as np

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cost_model import CostModel
from pinyon.engine.step_cost import LONGEST_S

LEAST_ROWS: Final = 4
"""Of a prompt, so that it does not wait for ever; kernels work in groups of so many."""


class StepBudget:
    """`max_rows` is what a step can hold, decoding rows included; `stall_s` as in config.Limits."""

    def __init__(self, costs: CostModel, *, max_rows: int, stall_s: float) -> None:
        self.costs = costs
        self.max_rows = max_rows
        self._stall_s = stall_s

    def limit_s(self, reading: int, span: int) -> float:
        """Return how long a step may take while so many answers are being read."""
        if not reading:
            return max(LONGEST_S, self._stall_s)
        return max(self._stall_s, 2 * self.costs.step_s(reading, span, reading))

    def step(self, *, reading: int, span: int) -> "Step":
        """Return an empty step, while so many answers are being read and so many cells are in use."""
        return Step(self, span, self.limit_s(reading, span))


class Step:
    """One step's rows and its limit."""

    def __init__(self, budget: StepBudget, span: int, limit_s: float) -> None:
        self._budget = budget
        self._span = span
        self._limit_s = limit_s
        self._rows = self._chosen = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def has_room(self) -> bool:
        """Whether one more decoding row keeps the limit."""
        rows, chosen = self._rows + 1, self._chosen + 1
        return rows <= self._budget.max_rows and self._budget.costs.step_s(rows, self._span, chosen) <= self._limit_s

    def take(self, rows: int, *, chosen: int = 0) -> None:
        """Count rows, and how many tokens are chosen from them."""
        self._rows += rows
        self._chosen += chosen

    def chunk_rows(self) -> int:
        """Return how many more rows, of a prompt, come quickest within the limit.

        Multiples of a block where there is time for one, since these give the same bits wherever a prompt is cut. 0 where there is
        no time, or no room in a step.
        """
        beside, room = self._rows, self._budget.max_rows - self._rows
        small = [
            rows - beside for rows in range(LEAST_ROWS, beside + BLOCK_TOKENS, LEAST_ROWS) if 0 < rows - beside <= room
        ]
        rows = np.array([*small, *range(BLOCK_TOKENS, room + 1, BLOCK_TOKENS)])
        seconds = self._budget.costs.steps_s(beside + rows, self._span, self._chosen)
        allowed = seconds <= self._limit_s
        return int(rows[allowed][(rows / seconds)[allowed].argmax()]) if allowed.any() else 0
