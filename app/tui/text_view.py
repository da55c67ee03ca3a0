"""One text of any length as one widget, whose cost does not grow with the text."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from pinyon.app.tui.blocks import Cutter
from pinyon.app.tui.growing_text import GrowingText, Part, Place
from pinyon.app.tui.rows import Row
from pinyon.app.tui.safe_text import safe_text


class TextView(Widget):
    """Shows a text that may grow at its end."""

    DEFAULT_CSS = """
    TextView {
        width: 1fr;
        height: auto;
    }
    """

    class Unset(Message):
        """The view got a width for which its blocks must be set. `was_set`: they show rows of another one."""

        def __init__(self, was_set: bool) -> None:
            super().__init__()
            self.was_set = was_set

    def __init__(self, cutter: Cutter) -> None:
        super().__init__()
        self._shown = GrowingText(cutter)
        self._painted_style: Style | None = None

    @property
    def text(self) -> str:
        """What was fed, less control codes."""
        return self._shown.text

    @property
    def row_count(self) -> int:
        return len(self._shown)

    @property
    def text_width(self) -> int:
        """Cells a row may have; 0 until the first layout."""
        return self._shown.width

    def feed(self, text: str) -> None:
        """Add text at the end."""
        before = len(self._shown)
        self._shown.feed(safe_text(text))
        self._show_end(before)

    def close(self) -> None:
        """End the text."""
        before = len(self._shown)
        self._shown.close()
        self._show_end(before)

    def _show_end(self, before: int) -> None:
        """Show what changed at the end of what had `before` rows."""
        if len(self._shown) != before:
            self.refresh(layout=True)
        else:
            self.refresh(Region(0, max(0, before - 1), self.size.width, 1))

    def unset_parts(self, near: int) -> Iterator[Part]:
        """Yield the parts that must be set, those nearest to a row first."""
        return self._shown.unset(near)

    def put(self, rows: dict[Part, list[Row]], width: int) -> None:
        """Show parts as they were set for a width, if it is still the view's."""
        before = len(self._shown)
        self._shown.put(rows, width)
        self.refresh(layout=len(self._shown) != before)

    def unset(self) -> None:
        """Let everything be set again; the look has changed."""
        self._shown.forget_look()

    def place_at(self, row: int) -> Place:
        return self._shown.place_at(row)

    def row_of(self, place: Place) -> int:
        return self._shown.row_of(place)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        if width != self._shown.width:
            self.post_message(self.Unset(was_set=self._shown.width > 0))
            self._shown.set_width(width)
        return len(self._shown)

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painted_style = self.rich_style  # the same for all rows, and slow to find out
        try:
            return super().render_lines(crop)
        finally:
            self._painted_style = None

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self._painted_style or self.rich_style
        row = list(Segment.apply_style(self._shown[y], style))
        strip = Strip(Segment.adjust_line_length(row, width, style), width)
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            strip = _highlighted(strip, span, self.screen.get_component_rich_style("screen--selection"))
        # Offsets say which text is under the mouse. Painting does without: they cost more than all the rest.
        return strip if self._painted_style else strip.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = (self._shown[row] for row in range(len(self._shown)))
        lines = ("".join(segment.text for segment in row).rstrip() for row in rows)
        return selection.extract("\n".join(lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        del selection
        self.refresh()


def _highlighted(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """Return the strip with characters from start to end, -1 for all that follow, in a style."""
    text = strip.text
    start, end = (cell_len(text[: place if place >= 0 else len(text)]) for place in span)
    middle = [Segment(segment.text, (segment.style or Style.null()) + style) for segment in strip.crop(start, end)]
    return Strip.join([strip.crop(0, start), Strip(middle), strip.crop(end)])
