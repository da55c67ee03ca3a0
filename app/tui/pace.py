"""How often what streams is painted."""

import time
from collections.abc import Callable
from typing import Final

OFTEN_S: Final = 0.1
SELDOM_S: Final = 0.5
SHARE: Final = 0.2
"""Of a core: what is left belongs to the engine beside the screen."""


class Pace:
    """Seconds from one paint to the next: `OFTEN_S`, or as many more as keep this thread below its `SHARE`, up to `SELDOM_S`."""

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self.wait_s = OFTEN_S
        self._cpu_clock = cpu_clock
        self._painted_at = cpu_clock()

    def take(self) -> None:
        """Learn, at a paint, what the one before has cost, with all that was done since then."""
        before, self._painted_at = self._painted_at, self._cpu_clock()
        self.wait_s = min(max(OFTEN_S, (self._painted_at - before) / SHARE), SELDOM_S)
