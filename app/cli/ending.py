"""How an answer is ended early, in good order: by Ctrl+C, or by a time limit."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Final

from pinyon.app.errors import AnswerError

AGAIN_S: Final = 0.2
"""Until an answer that goes on in spite of a cancel is cancelled again."""


@contextlib.contextmanager
def on_interrupt(stop: Callable[[], Coroutine[None, None, None]]) -> Iterator[None]:
    """Let the first Ctrl+C end the answer in good order; a second one ends the program."""
    loop = asyncio.get_running_loop()
    stopping: set[asyncio.Task[None]] = set()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stopping.add(loop.create_task(_insist(stop)))

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except NotImplementedError:  # Windows: Ctrl+C ends the program
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for task in stopping:
            task.cancel()


async def _insist(stop: Callable[[], Coroutine[None, None, None]]) -> None:
    """Stop until that has worked: a request that is still being rendered is not known to the engine yet."""
    while True:
        await stop()
        await asyncio.sleep(AGAIN_S)


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long a command may take, from when this is made; `seconds` None is for ever."""

    seconds: float | None = None
    began_at: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float | None:
        return None if self.seconds is None else self.began_at + self.seconds - time.monotonic()

    @contextlib.asynccontextmanager
    async def ends(self, undone: str, grace_s: float = 0.0) -> AsyncIterator[None]:
        """End the context where it lasts longer, and `grace_s` on top. Raises AnswerError, which says what was left undone."""
        left_s = self.left_s
        try:
            async with asyncio.timeout(None if left_s is None else left_s + grace_s) as scope:
                yield
        except TimeoutError:
            if scope.expired():
                raise self._passed(undone) from None
            raise

    @contextlib.contextmanager
    def ends_blocking(self, undone: str) -> Iterator[None]:
        """As `ends`, for what holds up the main thread: a pipe, a disk, a URL. Windows cannot interrupt it."""
        left_s = self.left_s
        if left_s is None or sys.platform == "win32":
            yield
            return

        def ring(_number: int, _frame: object) -> None:
            raise self._passed(undone)

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(left_s, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _passed(self, undone: str) -> AnswerError:
        return AnswerError(f"{undone} within the {self.seconds:g} s of --timeout")


@dataclass(slots=True)
class Alarm:
    """Whether it has rung."""

    is_over: bool = False


@contextlib.contextmanager
def at(limit: TimeLimit, stop: Callable[[], Coroutine[None, None, None]]) -> Iterator[Alarm]:
    """Call `stop` when the time is up, unless the context has ended before."""
    alarm = Alarm()
    left_s = limit.left_s
    if left_s is None:
        yield alarm
        return

    async def ring() -> None:
        await asyncio.sleep(left_s)
        alarm.is_over = True
        await _insist(stop)

    task = asyncio.create_task(ring())
    try:
        yield alarm
    finally:
        task.cancel()
