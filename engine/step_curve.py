"""What steps cost, as it is kept and shown."""

import math
from typing import Final

import msgspec

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63, 64, 96, 128, 192, 256, 384, 512)
"""Where the curve is held."""


class Curve(msgspec.Struct, frozen=True):
    """Seconds at each of ROWS with an empty context, and how many more for each thousand of span (as in step_cost)."""

    rows: tuple[int, ...]
    base_s: tuple[float, ...]
    span_s: tuple[float, ...]

    @property
    def is_sound(self) -> bool:
        """Whether steps could cost this: kept curves may have been damaged, or be an older version's."""
        costs = (*self.base_s, *self.span_s)
        is_whole = self.rows == ROWS and len(self.base_s) == len(self.span_s) == len(ROWS)
        return is_whole and all(0 < cost < math.inf for cost in costs)
