"""How an answer is ended early, in good order: by Ctrl+C, or by a time limit."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

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


@dataclass(slots=True)
class Alarm:
    """Whether it has rung."""

    is_over: bool = False


@contextlib.contextmanager
def at(deadline: float | None, stop: Callable[[], Coroutine[None, None, None]]) -> Iterator[Alarm]:
    """Call `stop` at a time of the monotonic clock, unless the context has ended before."""
    alarm = Alarm()
    if deadline is None:
        yield alarm
        return

    async def ring() -> None:
        await asyncio.sleep(deadline - time.monotonic())
        alarm.is_over = True
        await _insist(stop)

    task = asyncio.create_task(ring())
    try:
        yield alarm
    finally:
        task.cancel()
