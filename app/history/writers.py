"""Which process is writing a message, and whether it still lives: what a dead one left unfinished is interrupted."""

import os
from functools import cache
from typing import Final

_CLOCK_STEP_S: Final = 2.0
"""A process's start is told in the wall clock's time, which may have been set since."""


@cache
def this_process() -> str:
    """Return a name for this process that no later one has, even with the same number."""
    return _name(os.getpid())


def is_alive(name: str) -> bool:
    """Whether the process with this name lives."""
    number, _, started = name.partition(" ")
    if not number.isdecimal() or not started.isdecimal():
        return False
    now = _name(int(number))
    return bool(now) and abs(int(now.partition(" ")[2]) - int(started)) <= _CLOCK_STEP_S


def _name(number: int) -> str:
    import psutil  # noqa: PLC0415  takes 10 ms, and mostly nothing streams

    try:
        return f"{number} {psutil.Process(number).create_time():.0f}"
    except psutil.Error:
        return ""
