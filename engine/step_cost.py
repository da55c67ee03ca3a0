"""What a step costs: seconds for a decode of so many rows over such a span of cells, learned from the steps themselves.

The curve over the rows is not smooth (kernels work in groups of rows, attention changes its path at 64), and every machine has its
own. So it is held at some numbers of rows, as a line over the span at each, and between two of them it is straight.

The span is how many cells a row's attention has to do with, on average over the rows: it reads those of its own sequence, and
passes over all others that are in use, since they lie between them.
"""

from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pinyon.engine.step_curve import ROWS, Curve

Floats: TypeAlias = NDArray[np.float64]

SPAN: Final = 1000
"""Spans are counted in thousands here, so that all numbers are of one size."""

PASSED: Final = 0.1
"""What a cell costs that is only passed over, as a share of one that is read.

llama.cpp's CPU kernel looks at each cell's mask, and skips what belongs to others: 0.05 to 0.13 as measured there.
"""

LONGEST_S: Final = 0.5
"""No step should take longer: it cannot be interrupted, and whoever comes or goes waits for its end."""

_GUESSED_ROW_S: Final = 3e-3
_GUESSED_SPAN_S: Final = 5e-4
"""For each row and each thousand of span."""
_NOISE: Final = 0.05
"""The spread of a single measurement, as a share."""
_PACE: Final = 0.5
_SHAPE: Final = 0.5
_SPAN_SHAPE: Final = 1.0
"""How far the first guess may be off: all of it together, one number of rows, and what the span adds."""
_REACH: Final = 1.0
"""How far, in e-folds of the rows, one measurement tells something about its neighbours."""
_FORGETTING: Final = 1 / 1000
"""The share of all knowledge that each step makes worthless: machines get warm, other programs come and go."""
_DRIFT: Final = 0.3
"""How far costs are from what they were, as a share, when everything is forgotten."""
_OUTLIER: Final = 3.0
"""What lies further from the expected, in standard deviations, counts no more than this."""


_Number = TypeVar("_Number", float, Floats)


def span_of(read: _Number, used: int) -> _Number:
    """Return the span of rows that read so many cells each, of those that are in use."""
    return read + PASSED * (used - read)


def _kinship() -> Floats:
    """Return how much what is learned at one number of rows says about another, 0 to 1."""
    logs = np.log(ROWS)
    kinship: Floats = np.exp(-np.abs(logs[:, None] - logs[None, :]) / _REACH)
    return kinship


class StepCost:
    """A Kalman filter. Its state is the curve; its prior knows that costs change together, and neighbours more so.

    After the first step the whole curve has the machine's pace, and what was never measured stays vague.
    """

    def __init__(self, known: Curve | None = None) -> None:
        """Begin with a curve that was learned before on the same machine, or with a guess."""
        kinship = _kinship()
        shapes = np.block(
            [
                [kinship * _SHAPE**2, np.zeros_like(kinship)],
                [np.zeros_like(kinship), (kinship + 3) * _SPAN_SHAPE**2 / 4],
            ]
        )
        self._relative = shapes / _SHAPE**2 * _DRIFT**2 / 2 + _DRIFT**2 / 2
        """The covariance, relative to the costs, of what is as good as forgotten."""
        if known is not None:
            self._costs = np.array([*known.base_s, *known.span_s])
            self._covariance = self._forgotten()
            self.is_measured = True
        else:
            base = _GUESSED_ROW_S * (np.array(ROWS) + 4.0)
            self._costs = np.concatenate([base, _GUESSED_SPAN_S * np.array(ROWS)])
            self._covariance = (shapes + _PACE**2) * np.outer(self._costs, self._costs)
            self.is_measured = False

    def _forgotten(self) -> Floats:
        return self._relative * np.outer(self._costs, self._costs)

    @property
    def curve(self) -> Curve:
        return Curve(ROWS, tuple(self._costs[: len(ROWS)].tolist()), tuple(self._costs[len(ROWS) :].tolist()))

    def seconds(self, rows: int, span: float) -> float:
        """Return what a step of so many rows takes."""
        places, weights = _features(rows, span)
        return float(weights @ self._costs[places])

    def seconds_of(self, rows: NDArray[np.intp], spans: Floats) -> Floats:
        """Return as `seconds` for several numbers of rows, each with its span."""
        base_s, span_s = np.split(self._costs, 2)
        seconds = np.interp(rows, ROWS, base_s) + np.interp(rows, ROWS, span_s) * (spans / SPAN)
        scaled: Floats = seconds * np.maximum(rows / ROWS[-1], 1)
        return scaled

    def at(self, span: float) -> Floats:
        """Return the seconds for each of ROWS."""
        return self._costs[: len(ROWS)] + self._costs[len(ROWS) :] * (span / SPAN)

    def best(self, span: float) -> tuple[int, float]:
        """Return the number of rows that is computed quickest, in a step that is not longer than it may be, and what it takes."""
        seconds = self.at(span)
        allowed = np.flatnonzero(seconds <= max(LONGEST_S, seconds.min()))
        best = int(allowed[(seconds / ROWS)[allowed].argmin()])
        return ROWS[best], float(seconds[best])

    def measure(self, rows: int, span: float, seconds: float) -> None:
        """Learn from a step."""
        places, weights = _features(rows, span)
        expected = float(weights @ self._costs[places])
        if not self.is_measured:  # the guess has a shape, but no pace
            self._costs *= seconds / expected
            self._covariance *= (seconds / expected) ** 2
            self.is_measured = True
            expected = seconds
        towards = self._covariance[:, places] @ weights
        noise = (_NOISE * max(expected, seconds)) ** 2
        spread = float(weights @ towards[places]) + noise
        limit = _OUTLIER * spread**0.5
        surprise = min(max(seconds - expected, -limit), limit)
        before = self._costs
        self._costs = np.maximum(before + towards * (surprise / spread), before / 4)  # never negative
        self._covariance -= np.outer(towards, towards / spread)
        self._covariance += _FORGETTING * (self._forgotten() - self._covariance)


_PLACES: Final = np.arange(len(ROWS))


def _features(rows: int, span: float) -> tuple[NDArray[np.intp], Floats]:
    """Return which costs make up a step's, and with which weights."""
    right = int(np.searchsorted(ROWS, rows))
    if right == len(ROWS) or ROWS[right] == rows:
        place = min(right, len(ROWS) - 1)
        scale = rows / ROWS[place] if rows > ROWS[place] else 1.0
        return np.array([place, place + len(ROWS)]), np.array([scale, scale * span / SPAN])
    left = right - 1
    share = (rows - ROWS[left]) / (ROWS[right] - ROWS[left])
    weights = np.array([1 - share, share])
    return np.array([left, right, left + len(ROWS), right + len(ROWS)]), np.concatenate(
        [weights, weights * span / SPAN]
    )
