"""One text of any length as one widget, whose cost does not grow with the text.

The text is cut into blocks. A closed block has rows, set off the event loop by the typesetter for the width of the moment. Until they
are there it shows what it has: its plain rows, rows of another width, or about as many empty ones. The open block is plain text.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from pinyon.app.tui.blocks import Block, Cutter, Kind
from pinyon.app.tui.rows import Row, Tail, estimated_rows, plain_rows
from pinyon.app.tui.safe_text import safe_text


@dataclass(eq=False)
class Part:
    """A closed block and its rows. `width` is the one that they were set for, 0 while they only hold the place."""

    block: Block
    rows: list[Row]
    width: int = 0


@dataclass(frozen=True)
class Place:
    """A row by what it shows, wherever rows above it come and go: how deep in which part, from 0 to 1."""

    part: int
    depth: float


class TextView(Widget):
    """Text that may grow at its end."""

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
        self._cutter = cutter
        self._parts: list[Part] = []
        self._starts = [0]  # the first row of each part, and of the tail
        self._tail = Tail(0)
        self._tail_length = 0  # characters
        self._width = 0  # 0 until the first layout
        self._painted_style: Style | None = None

    @property
    def text(self) -> str:
        """What was fed, less control codes."""
        return "".join(part.block.text for part in self._parts) + self._cutter.open

    @property
    def row_count(self) -> int:
        return self._starts[-1] + len(self._tail)

    def feed(self, text: str) -> None:
        """Add text at the end."""
        text = safe_text(text)
        before = self.row_count
        for block in self._cutter.feed(text):
            cut = len(block.text) - self._tail_length
            self._grow_tail(text[:cut])
            self._close_tail(block)
            text = text[cut:]
        self._grow_tail(text)
        self._show(before)

    def close(self) -> None:
        """End the text: what was open becomes a block like the others."""
        before = self.row_count
        for block in self._cutter.close():
            self._close_tail(block)
        self._show(before)

    def _grow_tail(self, text: str) -> None:
        self._tail_length += len(text)
        if self._width:
            self._tail.feed(text)

    def _close_tail(self, block: Block) -> None:
        part = Part(block, self._tail.rows())
        if self._width and block.kind is Kind.PLAIN:
            part.width = self._width
        self._parts.append(part)
        self._tail, self._tail_length = Tail(self._width), 0
        self._starts.append(self._starts[-1] + len(part.rows))

    def _show(self, before: int) -> None:
        """Show what changed at the end of what had `before` rows."""
        if self.row_count != before:
            self.refresh(layout=True)
        else:
            self.refresh(Region(0, max(0, before - 1), self.size.width, 1))

    def unset_parts(self, near: int) -> Iterator[Part]:
        """Yield the parts that have no rows of the present width, those nearest to a row first."""
        if self._width:
            waiting = [index for index, part in enumerate(self._parts) if part.width != self._width]
            for index in sorted(waiting, key=lambda index: abs(self._starts[index] - near)):
                yield self._parts[index]

    @property
    def width(self) -> int:
        """Cells a row may have; 0 until the first layout."""
        return self._width

    def put(self, rows: dict[Part, list[Row]], width: int) -> None:
        """Show parts as they were set for a width, if it is still the view's."""
        if width != self._width:
            return
        before = self.row_count
        for part, its_rows in rows.items():
            gap = part is not self._parts[0] and not part.block.continues and its_rows
            part.rows = [[], *its_rows] if gap else its_rows
            part.width = width
        self._measure()
        self.refresh(layout=self.row_count != before)

    def _measure(self) -> None:
        self._starts = [0, *accumulate(len(part.rows) for part in self._parts)]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        if width != self._width:
            self._take_width(width)
        return self.row_count

    def unset(self) -> None:
        """Let every block be set again. They show what they have until then."""
        for part in self._parts:
            part.width = 0

    def _take_width(self, width: int) -> None:
        self.post_message(self.Unset(was_set=self._width > 0))
        self._width = width
        for part in self._parts:
            if not part.rows:
                part.rows = [[]] * estimated_rows(part.block.text, width)
        if self._parts and self._parts[0].block.kind is Kind.PLAIN:  # what was just typed is there at once
            self._parts[0].rows, self._parts[0].width = plain_rows(self._parts[0].block.text, width), width
        self._measure()
        self._tail = Tail(width)
        self._tail.feed(self._cutter.open)

    def place_at(self, row: int) -> Place:
        index = min(bisect_right(self._starts, row), len(self._starts)) - 1
        rows = len(self._parts[index].rows) if index < len(self._parts) else len(self._tail)
        return Place(index, (row - self._starts[index]) / max(1, rows))

    def row_of(self, place: Place) -> int:
        index = min(place.part, len(self._starts) - 1)
        rows = len(self._parts[index].rows) if index < len(self._parts) else len(self._tail)
        return self._starts[index] + round(place.depth * rows)

    def _row(self, y: int) -> Row:
        if y >= self.row_count:
            return []
        index = bisect_right(self._starts, y) - 1
        row = y - self._starts[index]
        return self._parts[index].rows[row] if index < len(self._parts) else self._tail[row]

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painted_style = self.rich_style  # the same for all rows, and slow to find out
        try:
            return super().render_lines(crop)
        finally:
            self._painted_style = None

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self._painted_style or self.rich_style
        row = list(Segment.apply_style(self._row(y), style))
        strip = Strip(Segment.adjust_line_length(row, width, style), width)
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            strip = _highlighted(strip, span, self.screen.get_component_rich_style("screen--selection"))
        # Offsets say which text is under the mouse. Painting does without: they cost more than all the rest.
        return strip if self._painted_style else strip.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = [row for part in self._parts for row in part.rows] + self._tail.rows()
        return selection.extract("\n".join(map(_text, rows))), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        del selection
        self.refresh()


def _text(row: Row) -> str:
    return "".join(segment.text for segment in row).rstrip()


def _highlighted(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """Return the strip with characters from start to end, -1 for all that follow, in a style."""
    text = strip.text
    start, end = (cell_len(text[: place if place >= 0 else len(text)]) for place in span)
    middle = [Segment(segment.text, (segment.style or Style.null()) + style) for segment in strip.crop(start, end)]
    return Strip.join([strip.crop(0, start), Strip(middle), strip.crop(end)])
