"""A scroll that follows its end while the user is there, and elsewhere keeps the text under the eye where it is.

Heights may change anywhere at any time: messages grow, are set anew for another width, come and go. Textual keeps the number of the
first row then, so the text would jump. Here its place is kept instead, in the very layout that moves it.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from pinyon.app.tui.message_view import MessageView

if TYPE_CHECKING:
    from pinyon.app.tui.growing_text import Place


class SteadyScroll(VerticalScroll):
    """Messages from top to bottom."""

    def __init__(self) -> None:
        super().__init__()
        self._following = True
        self._arranged: DockArrangeResult | None = None
        self._tops: list[int] = []  # in rows, of the messages below
        self._by_top: list[MessageView] = []
        self._held: tuple[MessageView, Place | int] | None = None

    @property
    def following(self) -> bool:
        """Whether the view moves with the end."""
        return self._following

    @property
    def has_end(self) -> bool:
        """Whether the last row is the end of everything, so that to reach it means to follow."""
        return True

    def moved(self) -> None:
        """Other rows may be on the screen, or others around them."""

    def follow(self) -> None:
        """Go to the end, and stay there."""
        self._following = True
        self._arranged = None
        self.refresh(layout=True)

    def hold(self, view: MessageView) -> None:
        """Bring the beginning of a message to the top, as far as there are rows below it, and keep it there."""
        self._following, self._held, self._arranged = False, (view, 0), None
        self.refresh(layout=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._following = self.has_end and new_value >= self.max_scroll_y
        row = round(new_value)
        index = bisect_right(self._tops, row) - 1
        if index >= 0:
            self._held = self._by_top[index], self._by_top[index].place_at(row - self._tops[index])
        self.moved()

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        result = super().arrange(size, optimal)
        if result is not self._arranged:
            self._arranged = result
            placed = [(at.region.y, at.widget) for at in result.placements if isinstance(at.widget, MessageView)]
            self._tops = [top for top, _ in placed]
            self._by_top = [view for _, view in placed]
            self._keep_place(max(0, result.total_region.bottom - size.height))
        return result

    def _keep_place(self, max_y: int) -> None:
        y = max_y
        if not self._following:
            if self._held is None or (top := self._top_of(self._held[0])) is None:
                return
            y = min(top + self._held[0].row_of(self._held[1]), max_y)
        if y != self.scroll_y:
            # As the compositor does for anchored widgets: this layout shall use it, and nobody has scrolled.
            self.set_scroll(None, y)
            self.set_reactive(Widget.scroll_target_y, y)
            self.vertical_scrollbar.set_reactive(ScrollBar.position, y)
        self.moved()

    def _top_of(self, view: MessageView) -> int | None:
        return self._tops[self._by_top.index(view)] if view in self._by_top else None

    def reaches_out(self, view: MessageView, step: int) -> bool:
        """Return whether a message goes on above (step -1) or below (1) the screen."""
        top = self._top_of(view)
        if top is None:
            return False
        return top < self.scroll_y if step < 0 else top + view.outer_size.height > self.scroll_y + self.size.height

    def by_distance(self) -> list[tuple[MessageView, int]]:
        """Return the messages, nearest to the middle of the screen first, and the row of each that the middle is at."""
        middle = round(self.scroll_y) + self.size.height // 2
        rows = [(view, middle - top) for top, view in zip(self._tops, self._by_top, strict=True)]
        return sorted(rows, key=lambda item: max(-item[1], item[1] - item[0].outer_size.height, 0))
