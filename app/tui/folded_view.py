"""A text behind a line about it, which shows the text when it is asked for."""

from abc import abstractmethod

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.reactive import var
from textual.widgets import Static

from pinyon.app.tui.blocks import PlainCutter
from pinyon.app.tui.safe_text import safe_text
from pinyon.app.tui.text_view import TextView


class FoldedView(Vertical):
    """The line, and below it while `expanded` the text, which is `content`. A click opens and closes it."""

    DEFAULT_CSS = """
    FoldedView {
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

    def __init__(self) -> None:
        super().__init__()
        self.content = TextView(PlainCutter())
        self._line = Static(markup=False)

    def compose(self) -> ComposeResult:
        self.refresh_line()
        yield self._line
        yield self.content

    @abstractmethod
    def summary(self) -> str:
        """Return what the line says."""

    def refresh_line(self) -> None:
        line = Content(f"{'▾' if self.expanded else '▸'} {safe_text(self.summary())}")
        if line != self._line.content:
            self._line.update(line, layout=False)

    def on_click(self) -> None:
        self.expanded = not self.expanded

    def watch_expanded(self, expanded: bool) -> None:
        self.set_class(expanded, "-expanded")
        self.refresh_line()
