"""Choosing the model that answers: a table of what is here and what can be fetched; fetching and loading on the spot."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, ProgressBar, Static

from pinyon.app.errors import AppError
from pinyon.app.tui import amounts
from pinyon.app.tui.model_rows import ModelRow
from pinyon.app.tui.safe_text import one_line, safe_text
from pinyon.engine.errors import EngineError
from pinyon.models.errors import ModelError

Rows: TypeAlias = Callable[[], Sequence[ModelRow]]
"""What there is to choose; called in a thread."""
Pull: TypeAlias = Callable[[str, Callable[[float], None], Callable[[], bool]], None]
"""Fetch a model by name, in a thread: told fractions, stopped by the last argument. Raises ModelError."""
Load: TypeAlias = Callable[[str, Callable[[float], None]], Awaitable[object]]
"""Load a model by name, told fractions. Raises AppError, ModelError, EngineError."""

_PROGRESS_S: Final = 0.25


class ModelPicker(ModalScreen[str | None]):
    """Ends with the name of the model that was loaded; None leaves everything as it was.

    Enter takes a model: one that is not here is fetched first. Escape cancels what is going on, then leaves.
    """

    DEFAULT_CSS = """
    ModelPicker { align: center middle; }
    ModelPicker > Vertical {
        width: 90%; max-width: 100; height: auto; max-height: 90%; padding: 1 2; background: $surface;
        border: round $primary; border-title-color: $text;
    }
    ModelPicker DataTable { height: auto; max-height: 14; background: $surface; }
    ModelPicker Static { height: auto; margin-top: 1; }
    ModelPicker ProgressBar { display: none; }
    ModelPicker.-busy ProgressBar { display: block; }
    ModelPicker Horizontal { height: auto; align-horizontal: right; margin-top: 1; }
    ModelPicker Button { margin-left: 2; }
    """
    BINDINGS = [Binding("escape", "leave", "Cancel")]  # noqa: RUF012  Textual's form

    def __init__(self, rows: Rows, pull: Pull, load: Load, *, current: str | None = None) -> None:
        super().__init__()
        self._read_rows = rows
        self._pull = pull
        self._load = load
        self._current = current
        self._rows: Sequence[ModelRow] = ()
        self._table: DataTable[Text] = DataTable(cursor_type="row")
        self._note = Static()
        self._bar = ProgressBar(total=1.0, show_eta=False)
        self._fraction = 0.0
        self._stop: Callable[[], object] | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Models"
            yield self._table
            yield self._note
            yield self._bar
            with Horizontal():
                yield Button("Use", variant="primary", id="use")
                yield Button("Cancel", id="leave")

    async def on_mount(self) -> None:
        self.set_interval(_PROGRESS_S, self._show_progress)
        await self._show_rows()

    async def _show_rows(self) -> None:
        try:
            self._rows = await asyncio.to_thread(self._read_rows)
        except (AppError, ModelError) as error:
            self._say(str(error))
        with_memory = any(row.memory for row in self._rows)
        at = self._table.cursor_row
        self._table.clear(columns=True)
        self._table.add_columns(*_titles(with_memory))
        for row in self._rows:
            self._table.add_row(*_cells(row, row.name == self._current, with_memory), key=row.name)
        names = [row.name for row in self._rows]
        self._table.move_cursor(row=names.index(self._current) if at == 0 and self._current in names else at)

    def on_data_table_row_highlighted(self) -> None:
        if self._stop is None and (row := self._chosen()) is not None:
            self._say(row.note)

    def on_data_table_row_selected(self) -> None:
        self._take()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "use":
            self._take()
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Cancel what is going on; leave where nothing is."""
        if not self._cancel():
            self.dismiss(None)

    def _chosen(self) -> ModelRow | None:
        at = self._table.cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def _take(self) -> None:
        if self._stop is None and (row := self._chosen()) is not None:
            self._fetch_and_load(row)

    @work
    async def _fetch_and_load(self, row: ModelRow) -> None:
        try:
            if not row.is_here:
                await self._fetch(row)
                await self._show_rows()
            if await self._loaded(row):
                self.dismiss(row.name)
        except (AppError, ModelError, EngineError) as error:
            self._say(str(error))
        finally:
            self._end()

    async def _fetch(self, row: ModelRow) -> None:
        stopped = threading.Event()
        self._begin(f"fetching {row.name}, {amounts.size(row.size_bytes)}", stopped.set)
        try:
            await asyncio.to_thread(self._pull, row.name, self._progress, stopped.is_set)
        finally:
            stopped.set()  # when the program ends, it waits for this thread

    async def _loaded(self, row: ModelRow) -> bool:
        """Load a model; false where the user cancelled that."""
        loading = asyncio.ensure_future(self._load(row.name, self._progress))
        self._begin(f"loading {row.name}", loading.cancel)
        try:
            await asyncio.wait((loading,))
        finally:
            loading.cancel()  # the program ends
        if loading.cancelled():
            self._say(f"stopped loading {row.name}")
            return False
        loading.result()
        return True

    def _begin(self, what: str, stop: Callable[[], object]) -> None:
        self._fraction = 0.0
        self._stop = stop
        self.add_class("-busy")
        self._say(what)
        self._show_progress()

    def _end(self) -> None:
        self._stop = None
        self.remove_class("-busy")

    def _cancel(self) -> bool:
        """Cancel what is going on; whether anything was."""
        stop = self._stop
        if stop is not None:
            stop()
        return stop is not None

    def _progress(self, fraction: float) -> None:
        """Keep the fraction for the next repaint; called from any thread."""
        self._fraction = fraction

    def _show_progress(self) -> None:
        self._bar.update(progress=self._fraction)

    def _say(self, text: str) -> None:
        self._note.update(Content(safe_text(text)))


def _titles(with_memory: bool) -> tuple[str, ...]:
    return ("Model", "", "Size", "Quant", "Context", "Speed here", *(("Memory",) if with_memory else ()))


def _cells(row: ModelRow, is_current: bool, with_memory: bool) -> tuple[Text, ...]:
    place = "in use" if is_current else "here" if row.is_here else "to fetch"
    numbers = (
        amounts.size(row.size_bytes) if row.size_bytes else "",
        row.quantization,
        "" if row.context_tokens is None else f"{row.context_tokens:,}",
        "" if row.tokens_per_s is None else amounts.rate(row.tokens_per_s),
        *((row.memory,) if with_memory else ()),
    )
    style = "" if row.is_here else "dim"
    return tuple(Text(one_line(text), style) for text in (row.name, place, *numbers))
