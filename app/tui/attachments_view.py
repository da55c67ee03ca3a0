"""What went along with a question: names and costs, and the text itself when asked for."""

from collections.abc import Iterable

from pinyon.app.tui.folded_view import FoldedView
from pinyon.app.tui.safe_text import one_line


class AttachmentsView(FoldedView):
    """A line for each title. The text, which may be long, is only looked at once it is to be shown."""

    def __init__(self, titles: Iterable[str], text: str) -> None:
        super().__init__()
        self._titles = "\n  ".join(map(one_line, titles))
        self._unread = text

    def summary(self) -> str:
        return self._titles

    def watch_expanded(self, expanded: bool) -> None:
        if self._unread:
            self.content.feed(self._unread)
            self.content.close()
            self._unread = ""
        super().watch_expanded(expanded)
