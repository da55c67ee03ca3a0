"""What a model thought before it answered: one line about it, live while it thinks, and the thoughts themselves when asked for."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pinyon.app.counted import counted
from pinyon.app.tui.folded_view import FoldedView

if TYPE_CHECKING:
    from textual.timer import Timer


class ReasoningView(FoldedView):
    """`running`: the model still thinks. Then the seconds are counted here, by `clock`, from the first thought on."""

    def __init__(
        self,
        reasoning: str,
        seconds: float,
        tokens: int,
        *,
        running: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._started = clock() - seconds
        self._seconds = seconds
        self._tokens = tokens
        self._thinking = running
        self._timer: Timer | None = None
        self.content.feed(reasoning)
        if not running:
            self.content.close()

    def on_mount(self) -> None:
        if self._thinking:
            self._timer = self.set_interval(1, self.refresh_line)

    def feed(self, reasoning: str, tokens: int) -> None:
        self._tokens += tokens
        self.content.feed(reasoning)
        self.refresh_line()

    def close(self, seconds: float = 0.0, tokens: int = 0) -> None:
        """The model has stopped thinking; zeros leave what was counted here. Closing again only corrects the figures."""
        if self._thinking:
            self._seconds = self._clock() - self._started
            self._thinking = False
            self.content.close()
        self._seconds, self._tokens = seconds or self._seconds, tokens or self._tokens
        if self._timer is not None:
            self._timer.stop()
        self.refresh_line()

    def summary(self) -> str:
        seconds = self._clock() - self._started if self._thinking else self._seconds
        figures = [f"{seconds:.0f} s"] if seconds else []
        if self._tokens:
            figures.append(counted(self._tokens, "token"))
        return f"{'thinking' if self._thinking else 'thought'} {', '.join(figures)}".rstrip()
