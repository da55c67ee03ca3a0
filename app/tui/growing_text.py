"""A text that grows at its end, as rows of so many cells: closed blocks, each set on its own, and the open one as plain text.

What is closed has rows at any moment: plain ones, rows of another width, or before the first width none. `unset` tells which still
have to be set; `put` takes them.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from pinyon.app.tui.blocks import Block, Cutter, Kind
from pinyon.app.tui.rows import Row, Tail, estimated_rows, plain_rows


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


class GrowingText:
    """`width` is 0 until it is set: the text has no rows then."""

    def __init__(self, cutter: Cutter) -> None:
        self.width = 0
        self._cutter = cutter
        self._parts: list[Part] = []
        self._starts = [0]  # the first row of each part, and of the tail
        self._tail = Tail(0)

    @property
    def text(self) -> str:
        return "".join(part.block.text for part in self._parts) + self._cutter.open

    def __len__(self) -> int:
        """Rows."""
        return self._starts[-1] + len(self._tail)

    def __getitem__(self, row: int) -> Row:
        if row >= len(self):
            return []
        index = bisect_right(self._starts, row) - 1
        row -= self._starts[index]
        return self._parts[index].rows[row] if index < len(self._parts) else self._tail[row]

    def feed(self, text: str) -> None:
        if closed := self._cutter.feed(text):
            self._add(closed)
        elif self.width:
            self._tail.feed(text)

    def close(self) -> None:
        """End the text: what was open becomes a block like the others."""
        self._add(self._cutter.close())

    def set_width(self, width: int) -> None:
        """Wrap what is open, and the first block of a plain text, so that what was just typed is there at once."""
        self.width = width
        for part in self._parts:
            if not part.rows:
                part.rows = [[]] * estimated_rows(part.block.text, width)
        if self._parts and self._parts[0].block.kind is Kind.PLAIN:
            self._parts[0].rows, self._parts[0].width = plain_rows(self._parts[0].block.text, width), width
        self._renew()

    def unset(self, near: int) -> Iterator[Part]:
        """Yield the parts that have no rows of the present width, those nearest to a row first."""
        if self.width:
            waiting = [index for index, part in enumerate(self._parts) if part.width != self.width]
            for index in sorted(waiting, key=lambda index: abs(self._starts[index] - near)):
                yield self._parts[index]

    def put(self, rows: dict[Part, list[Row]], width: int) -> None:
        """Show parts as they were set for a width, if it is still the present one."""
        if width != self.width:
            return
        for part, its_rows in rows.items():
            gap = its_rows and part is not self._parts[0] and not part.block.continues
            part.rows = [[], *its_rows] if gap else its_rows
            part.width = width
        self._measure()

    def forget_look(self) -> None:
        """Let every block be set again. They show what they have until then."""
        for part in self._parts:
            part.width = 0

    def place_at(self, row: int) -> Place:
        index = min(bisect_right(self._starts, row), len(self._starts)) - 1
        return Place(index, (row - self._starts[index]) / max(1, self._rows_in(index)))

    def row_of(self, place: Place) -> int:
        index = min(place.part, len(self._parts))
        return self._starts[index] + round(place.depth * self._rows_in(index))

    def _rows_in(self, index: int) -> int:
        return len(self._parts[index].rows) if index < len(self._parts) else len(self._tail)

    def _add(self, closed: list[Block]) -> None:
        for block in closed:
            rows = plain_rows(block.text, self.width) if self.width else []
            self._parts.append(Part(block, rows, self.width if block.kind is Kind.PLAIN else 0))
        self._renew()

    def _renew(self) -> None:
        """The parts or the width have changed: measure, and begin the tail again."""
        self._measure()
        self._tail = Tail(self.width)
        if self.width:
            self._tail.feed(self._cutter.open)

    def _measure(self) -> None:
        self._starts = [0, *accumulate(len(part.rows) for part in self._parts)]
