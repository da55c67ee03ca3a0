"""What a model thought before it answered: one line about it, live while it thinks, and the thoughts themselves when asked for."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.reactive import var
from textual.widgets import Static

from pinyon.app.tui.blocks import PlainCutter
from pinyon.app.tui.text_view import TextView

if TYPE_CHECKING:
    from textual.timer import Timer


class ReasoningView(Vertical):
    """`running`: the model still thinks. Then the seconds are counted here, by `clock`, from the first thought on."""

    DEFAULT_CSS = """
    ReasoningView {
        height: auto;
        color: $text-muted;
        & > TextView {
            display: none;
            border-left: solid $panel;
            padding-left: 1;
        }
        &.-expanded {
            margin-bottom: 1;
            & > TextView {
                display: block;
            }
        }
    }
    """

    expanded = var(default=False, init=False)

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
        self._line = Static(self._summary(), markup=False)
        self.thoughts = TextView(PlainCutter())
        self.thoughts.feed(reasoning)
        if not running:
            self.thoughts.close()

    def compose(self) -> ComposeResult:
        yield self._line
        yield self.thoughts

    def on_mount(self) -> None:
        if self._thinking:
            self._timer = self.set_interval(1, self._refresh_summary)

    def feed(self, reasoning: str, tokens: int) -> None:
        self._tokens += tokens
        self.thoughts.feed(reasoning)
        self._refresh_summary()

    def close(self, seconds: float = 0.0, tokens: int = 0) -> None:
        """The model has stopped thinking; zeros leave what was counted here. Closing again only corrects the figures."""
        if self._thinking:
            self._seconds = self._clock() - self._started
            self._thinking = False
            self.thoughts.close()
        self._seconds, self._tokens = seconds or self._seconds, tokens or self._tokens
        if self._timer is not None:
            self._timer.stop()
        self._refresh_summary()

    def on_click(self) -> None:
        self.expanded = not self.expanded

    def watch_expanded(self, expanded: bool) -> None:
        self.set_class(expanded, "-expanded")
        self._refresh_summary()

    def _refresh_summary(self) -> None:
        summary = self._summary()
        if summary != self._line.content:
            self._line.update(summary, layout=False)

    def _summary(self) -> Content:
        seconds = self._clock() - self._started if self._thinking else self._seconds
        figures = [f"{seconds:.0f} s"] if seconds else []
        if self._tokens:
            figures.append("1 token" if self._tokens == 1 else f"{self._tokens:,} tokens")
        words = f"{'thinking' if self._thinking else 'thought'} {', '.join(figures)}"
        return Content(f"{'▾' if self.expanded else '▸'} {words.rstrip()}")
