"""Measures what steps cost before anybody asks for anything, so that the first ones to come are not the measurement."""

import time
from typing import Final

from pinyon.engine.cost_model import CostModel
from pinyon.engine.native import Context, RowBuffer
from pinyon.engine.step_cost import LONGEST_S

BUDGET_S: Final = 1.5
ROWS: Final = (1, 1, 4, 16, 64, 8, 32, 128, 2, 64, 32, 16, 48, 64, 24, 12)
"""In this order, as far as there is time; the first step of all does not count. A curve far from the first guess is not learned at once."""


class Calibration:
    """A few steps in an empty context, one at a time. `scratch` is a sequence id that nobody else uses."""

    def __init__(self, context: Context, costs: CostModel, scratch: int) -> None:
        self._context = context
        self._costs = costs
        self._buffer = RowBuffer(max(ROWS))
        self._buffer.sequence_ids[:] = scratch
        self._buffer.positions[:] = range(max(ROWS))
        self._scratch = scratch
        self._rows = list(ROWS)
        self._left_s = BUDGET_S

    @property
    def is_over(self) -> bool:
        return not self._rows

    def step(self) -> None:
        """Compute a step, unless it would take long: whoever comes meanwhile waits for its end. Raises NativeError."""
        rows = self._rows.pop(0)
        if self._costs.is_measured and self._costs.step_s(rows, 0) > min(self._left_s, LONGEST_S / 2):
            return
        started = time.perf_counter()
        self._context.decode(self._buffer, rows)
        seconds = time.perf_counter() - started
        self._context.remove_sequence(self._scratch)
        self._left_s -= seconds
        self._costs.measure_step(rows, 0, seconds)
