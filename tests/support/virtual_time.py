"""An event loop whose clock jumps to whatever comes next: hours pass in milliseconds, and nothing depends on the machine."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

_Result = TypeVar("_Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        coming = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        if not self._ready:
            assert coming, "nothing will ever happen"
            self.now = max(self.now, min(coming))
        super()._run_once()


def run_virtually(made: Coroutine[object, object, _Result]) -> _Result:
    """Run a coroutine to its end on such a loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(made)
