"""What things cost on this machine with this model, as measured while it works."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pinyon.engine.step_cost import PASSED, Floats, StepCost
from pinyon.engine.step_curve import Curve

_MEMORY: Final = 0.2
"""The weight of the newest measurement in a running mean."""


class Rate:
    """Seconds per unit, a running mean; the first measurement replaces the guess."""

    def __init__(self, guess: float) -> None:
        self._value = guess
        self._measured = False

    @property
    def value(self) -> float:
        return self._value

    @property
    def per_s(self) -> float:
        """Units per second as measured; 0 while nothing was."""
        return 1 / self._value if self._measured and self._value else 0.0

    def measure(self, units: int, seconds: float) -> None:
        new = seconds / units
        self._value = new if not self._measured else (1 - _MEMORY) * self._value + _MEMORY * new
        self._measured = True


class CostModel:
    """Seconds for steps, for computing prompts, for choosing tokens, and for bringing KV back instead of computing it.

    Spans are those of step_cost.
    """

    def __init__(self) -> None:
        self._steps = StepCost()
        self._sampling_s_per_row = Rate(0.0)
        self._restore_s_per_byte = Rate(1e-9)
        self._is_warm = False

    @property
    def is_measured(self) -> bool:
        """Whether what is said of steps is more than a guess."""
        return self._steps.is_measured

    @property
    def curve(self) -> Curve | None:
        """What steps cost; None while that is a guess."""
        return self._steps.curve if self.is_measured else None

    def go_on_with(self, curve: Curve) -> None:
        """Take what was learned of steps at an earlier start."""
        self._steps = StepCost(curve)

    @property
    def prefill_tokens_per_s(self) -> float:
        """In an empty context; 0 while nothing was measured."""
        return 1 / self.prefill_s(1) if self.is_measured else 0.0

    @property
    def restore_bytes_per_s(self) -> float:
        """0 while nothing was measured."""
        return self._restore_s_per_byte.per_s

    def step_s(self, rows: int, span: float, chosen: int = 0) -> float:
        """Return what a step takes after which so many tokens are `chosen`."""
        return self._steps.seconds(rows, span) + chosen * self._sampling_s_per_row.value

    def steps_s(self, rows: NDArray[np.intp], spans: Floats, chosen: int | Floats = 0) -> Floats:
        """Return as step_s for several numbers of rows, each with its span, and its number of tokens chosen if they differ."""
        return self._steps.seconds_of(rows, spans) + chosen * self._sampling_s_per_row.value

    def cell_s(self, rows: int) -> float:
        """Return how much longer a step of so many rows takes for each cell that they pass over."""
        return self._steps.seconds(rows, PASSED) - self._steps.seconds(rows, 0)

    def prefill_s(self, tokens: int, span: float = 0) -> float:
        """Return what so many tokens of a prompt cost in steps that are as quick as can be, with such a span before them."""
        rows, seconds = self._steps.best(span + tokens // 2)
        return tokens * seconds / rows

    def alone_s(self, tokens: int, span: float = 0) -> float:
        """Return how long it takes until so many tokens of a prompt are computed in steps of their own, which are not all full."""
        rows, seconds = self._steps.best(span + tokens // 2)
        rest = tokens % rows
        return tokens // rows * seconds + (self.step_s(rest, span + tokens) if rest else 0.0)

    def prefill_cell_s(self, tokens: int) -> float:
        """Return how much longer computing so many tokens of a prompt takes for each cell that they pass over."""
        return self.prefill_s(tokens, PASSED) - self.prefill_s(tokens, 0)

    def restore_s(self, size_bytes: int) -> float:
        return size_bytes * self._restore_s_per_byte.value

    def measure_step(self, rows: int, span: float, seconds: float) -> None:
        """Take note of a step's computation, without what is chosen after it. The first one pays for what no later one does."""
        if self._is_warm and seconds > 0:
            self._steps.measure(rows, span, seconds)
        self._is_warm = True

    def measure_sampling(self, rows: int, seconds: float) -> None:
        """Take note of how long it took to choose so many tokens."""
        self._sampling_s_per_row.measure(rows, seconds)

    def measure_restore(self, size_bytes: int, seconds: float) -> None:
        """Take note of KV that came back, from where its bytes were to the context."""
        self._restore_s_per_byte.measure(size_bytes, seconds)
