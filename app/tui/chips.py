"""What goes along with the next message: files and large pastes as chips, each with what it costs in tokens."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import HorizontalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from pinyon.app.counted import counted
from pinyon.app.errors import AppError
from pinyon.app.tui import amounts
from pinyon.app.tui.draft import Piece
from pinyon.app.tui.safe_text import one_line, safe_text
from pinyon.engine.errors import EngineError

LARGE_CHARS: Final = 2000
LARGE_LINES: Final = 10
"""A paste beyond either becomes a chip: the prompt shows ten lines."""
_LABEL_CHARS: Final = 40
_REMOVE: Final = " ✕"

Count: TypeAlias = Callable[[str], Awaitable[int]]


def is_large(pasted: str) -> bool:
    """Whether pasted text belongs into a chip instead of the prompt."""
    return len(pasted) > LARGE_CHARS or len(pasted.splitlines()) > LARGE_LINES


class Chip(Static, can_focus=True):
    """One piece and its cost. Delete, backspace, or a click on its cross removes it."""

    BINDINGS = [Binding("delete,backspace", "remove", "Remove attachment", show=False)]  # noqa: RUF012  Textual's form

    class Removed(Message):
        """The user wants this chip gone."""

        def __init__(self, chip: "Chip") -> None:
            super().__init__()
            self.chip = chip

    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.piece = piece
        self.tooltip = Content("\n".join(map(safe_text, piece.left_out))) if piece.left_out else None

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Paint label and cost."""
        label = one_line(self.piece.label)
        if len(label) > _LABEL_CHARS:  # the end of a path says more than its beginning
            label = f"…{label[1 - _LABEL_CHARS :]}"
        cost = amounts.cost(self.piece.tokens, self.piece.size_bytes)
        self.update(Content.assemble(label, (f" {cost}", "dim"), _REMOVE))

    def count(self, tokens: int | None) -> None:
        """Say what it costs; None is not known."""
        self.piece = replace(self.piece, tokens=tokens)
        self.show()

    def on_click(self, event: events.Click) -> None:
        if event.x >= self.outer_size.width - len(_REMOVE) - 1:
            self.action_remove()

    def action_remove(self) -> None:
        self.post_message(self.Removed(self))


class Chips(HorizontalScroll):
    """The chips above the prompt; takes no room while there are none."""

    DEFAULT_CSS = """
    Chips { height: 1; display: none; scrollbar-size-horizontal: 0; }
    Chips.-some { display: block; }
    Chips > Static { width: auto; height: 1; margin-right: 1; }
    Chip { background: $surface; padding: 0 1; }
    Chip:focus { background: $primary; color: $text; }
    """

    class Changed(Message):
        """A chip has come or gone."""

    def __init__(self, count: Count | None = None, *, urls: bool = False, id: str | None = None) -> None:  # noqa: A002
        """`count` counts the tokens of a text, where a model is loaded; it may raise AppError and EngineError."""
        super().__init__(id=id, can_focus=False)
        self._count = count
        self._urls = urls
        self._chips: list[Chip] = []
        self._sum = Static()

    def compose(self) -> ComposeResult:
        yield self._sum

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(chip.piece for chip in self._chips)

    @property
    def tokens(self) -> int | None:
        """What all of it costs together; None while a part is not counted."""
        known = [piece.tokens for piece in self.pieces if piece.tokens is not None]
        return sum(known) if len(known) == len(self._chips) else None

    async def attach(self, source: str) -> None:
        """Read a file, a folder or a URL and add it. Raises UsageError that says why it cannot be."""
        self.add(await asyncio.to_thread(Piece.of_source, source, urls=self._urls))

    async def paste(self, text: str) -> None:
        self.add(await asyncio.to_thread(Piece.of_paste, text))

    def add(self, piece: Piece) -> None:
        chip = Chip(piece)
        self._chips.append(chip)
        self.mount(chip, before=self._sum)
        self.scroll_end(animate=False)
        self._count_tokens(chip)
        self._changed()

    def put(self, pieces: Iterable[Piece]) -> None:
        """Put these in the place of what is there."""
        gone, self._chips = self._chips, []
        self.remove_children(gone)
        for piece in pieces:
            self.add(piece)
        self._changed()

    def remove_last(self) -> None:
        """Remove what came last, if anything did."""
        if self._chips:
            self._chips[-1].action_remove()

    def count_with(self, count: Count | None) -> None:
        """Count by this model's tokens from now on, also what is here already."""
        if count == self._count:
            return
        self._count = count
        for chip in self._chips:
            chip.count(None)
            self._count_tokens(chip)
        self._show()

    async def on_chip_removed(self, event: Chip.Removed) -> None:
        event.stop()
        if event.chip in self._chips:
            self._chips.remove(event.chip)
            self._changed()
            await event.chip.remove()

    def _count_tokens(self, chip: Chip) -> None:
        if self._count is not None:
            self.run_worker(self._counted(chip, self._count), group="count")

    async def _counted(self, chip: Chip, count: Count) -> None:
        try:
            tokens = await count(chip.piece.text)
        except (AppError, EngineError):  # no model, or none that answers: the size stays
            return
        if count == self._count and chip in self._chips:
            chip.count(tokens)
            self._show()

    def _changed(self) -> None:
        self._show()
        self.post_message(self.Changed())

    def _show(self) -> None:
        self.set_class(bool(self._chips), "-some")
        several = len(self._chips) > 1 and self.tokens is not None
        self._sum.update(Content(f"{counted(self.tokens or 0, 'token')} together") if several else Content(""))
