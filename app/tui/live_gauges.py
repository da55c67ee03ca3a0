"""The gauges as the chat keeps them up to date: the answer that is written, else the last one, and what the engine holds."""

from collections.abc import Awaitable, Callable

from pinyon.app.tui.figures import AnswerMeter, Figures
from pinyon.app.tui.gauges import GAUGES_HZ, Gauges
from pinyon.engine.events import Event, Progress
from pinyon.engine.meters import Meters


class LiveGauges(Gauges):
    """`read_meters` asks the engine, which may take its time: until it answers, the last answer stands."""

    def __init__(self, read_meters: Callable[[], Awaitable[Meters | None]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._read_meters = read_meters
        self._meters: Meters | None = None
        self._answer: AnswerMeter | None = None
        self._last: Figures | None = None

    def on_mount(self) -> None:
        # An interval waits for what it calls: a slow engine is asked less often, and holds up no figures.
        self.set_interval(1 / GAUGES_HZ, self._ask)
        self.set_interval(1 / GAUGES_HZ, self.show_now)

    def take(self, event: Event) -> None:
        """Take the next event of the answer that is written."""
        if self._answer is None or (isinstance(event, Progress) and event.done == 0):  # another answer begins
            self._answer = AnswerMeter()
        self._answer.take(event)

    def rest_on(self, figures: Figures | None, *, is_busy: bool) -> None:
        """Show the figures of an answer that ended long ago, None where there is none; `is_busy`: once nothing is written."""
        self._last = figures
        if not is_busy:
            self._answer = None

    def show_now(self) -> None:
        if self.display:
            self.show(self._meters, self._last if self._answer is None else self._answer.figures())

    async def _ask(self) -> None:
        if self.display:
            self._meters = await self._read_meters()
