"""Sets the blocks of texts on a thread, those on the screen first, so that no block is too long for the event loop.

Rows come back in bundles: each bundle costs one layout, however many blocks it has.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from pinyon.app.tui.growing_text import Part
from pinyon.app.tui.rows import Look, Row, rows_of
from pinyon.app.tui.text_view import TextView

_BUNDLE_S = 0.04
_BUNDLE_PARTS = 200
_CALM_S = 0.1  # while a window is being dragged, each width lasts shorter than this


class Typesetter:
    """`nearest` yields the texts and the row of each that the screen is nearest to, nearest text first."""

    def __init__(self, nearest: Callable[[], Iterable[tuple[TextView, int]]]) -> None:
        self.look = Look()
        self._nearest = nearest
        self._wanted = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._wait_until = 0.0

    def wake(self, *, when_calm: bool = False) -> None:
        """Look for unset parts now, or when nobody has asked for a while."""
        if when_calm:
            self._wait_until = time.monotonic() + _CALM_S
        self._wanted.set()
        self._done.clear()

    async def done(self) -> None:
        """Wait until everything is set."""
        await self._done.wait()

    async def run(self) -> None:
        """Set whatever is unset, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._calm()
            while jobs := self._jobs():
                for view, width, rows in await asyncio.to_thread(_set, jobs, self.look):
                    view.put(rows, width)
            if not self._wanted.is_set():
                self._done.set()

    async def _calm(self) -> None:
        while (wait_s := self._wait_until - time.monotonic()) > 0:  # noqa: ASYNC110  # waits for a time, not for an event
            await asyncio.sleep(wait_s)

    def _jobs(self) -> list[tuple[TextView, int, list[Part]]]:
        jobs: list[tuple[TextView, int, list[Part]]] = []
        left = _BUNDLE_PARTS
        for view, near in self._nearest():
            parts = [part for part, _ in zip(view.unset_parts(near), range(left), strict=False)]
            if parts:
                jobs.append((view, view.text_width, parts))
            left -= len(parts)
            if not left:
                break
        return jobs


def _set(jobs: list[tuple[TextView, int, list[Part]]], look: Look) -> list[tuple[TextView, int, dict[Part, list[Row]]]]:
    """Set at least one part, and as many as the time of a bundle allows. Touches no view."""
    deadline = time.monotonic() + _BUNDLE_S
    results: list[tuple[TextView, int, dict[Part, list[Row]]]] = []
    for view, width, parts in jobs:
        rows: dict[Part, list[Row]] = {}
        results.append((view, width, rows))
        for part in parts:
            rows[part] = rows_of(part.block, width, look)
            if time.monotonic() > deadline:
                return results
    return results
