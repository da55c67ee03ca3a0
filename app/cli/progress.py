"""Progress of long work, on stderr: a bar on a terminal, a line now and then elsewhere. rich is imported when needed."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

QUIET_S: Final = 0.7
"""Work that is done sooner shows nothing."""


@contextlib.contextmanager
def loading(name: str, doing: str = "loading") -> Iterator[Callable[[float], None]]:
    """Show how far a model is loaded, or something else is done; yields the function to call with the fraction. Nothing off a terminal."""
    if not sys.stderr.isatty():
        yield lambda _fraction: None
        return
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        show: Callable[[float], None] | None = None

        def on_progress(fraction: float) -> None:
            nonlocal show
            if show is None and time.monotonic() - started > QUIET_S:
                show = stack.enter_context(_bar(f"{doing} {name}"))
            if show is not None:
                show(fraction)

        yield on_progress


@contextlib.contextmanager
def _bar(description: str) -> Iterator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


@contextlib.contextmanager
def fetching(name: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a download; yields the function to call with the bytes done. Off a terminal: a line every tenth."""
    if not sys.stderr.isatty():
        yield _tenths(name, total_bytes)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total_bytes)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of a number of things are done; yields the function to call with that. Off a terminal: nothing."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def _tenths(name: str, total_bytes: int) -> Callable[[int], None]:
    told = 0

    def on_progress(done: int) -> None:
        nonlocal told
        if (tenth := 10 * done // max(total_bytes, 1)) > told:
            told = tenth
            print(f"{name}: {tenth * 10} % of {total_bytes / 1e6:.0f} MB", file=sys.stderr)

    return on_progress
