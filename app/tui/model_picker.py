"""Choosing the model that answers: a table of what is here and what can be fetched, and whether it fits; fetching and loading on the spot."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
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
from pinyon.app.tui.model_verdict import (
    KV_TYPES,
    TITLES,
    Judged,
    cells,
    context_for,
    contexts,
    judged,
    verdict_lines,
    words_to_begin_with,
)
from pinyon.app.tui.safe_text import one_line, safe_text
from pinyon.app.verdict import Here
from pinyon.engine.errors import EngineError
from pinyon.models.errors import ModelError
from pinyon.models.memory.fit import Wish
from pinyon.models.memory.kv import KvType

Rows: TypeAlias = Callable[[], Iterator[ModelRow]]
"""What there is to choose; each is asked for in a thread. Raises ModelError."""
Look: TypeAlias = Callable[[], Awaitable[Here]]
"""What this machine has to offer now."""
Pull: TypeAlias = Callable[[str, Callable[[float], None], Callable[[], bool]], None]
"""Fetch a model by name, in a thread: told fractions, stopped by the last argument. Raises ModelError."""
Load: TypeAlias = Callable[[str, int | None, KvType | None, Callable[[float], None]], Awaitable[object]]
"""Load a model by name with so much context and this type of KV, told fractions. Raises AppError, ModelError, EngineError."""
Measure: TypeAlias = Callable[[Callable[[float], None]], Awaitable[object]]
"""Measure how fast weights are here, for `Look` to know, told fractions. Raises AppError, OSError."""

_PROGRESS_S: Final = 0.25


class ModelPicker(ModalScreen[str | None]):
    """Ends with the name of the model that was loaded; None leaves everything as it was.

    Enter takes a model: one that is not here is fetched first. Escape cancels what is going on, then leaves. `wish` is what
    models are judged by, and loaded with; its context and its type of KV can be chosen.
    """

    DEFAULT_CSS = """
    ModelPicker { align: center middle; }
    ModelPicker > Vertical {
        width: 100%; max-width: 110; height: auto; max-height: 100%; overflow-y: auto; padding: 0 1;
        background: $surface; border: round $primary; border-title-color: $text;
    }
    ModelPicker DataTable { height: auto; max-height: 30vh; background: $surface; }
    ModelPicker Static { height: auto; }
    ModelPicker ProgressBar { display: none; }
    ModelPicker.-busy ProgressBar { display: block; }
    ModelPicker Horizontal { height: auto; align-horizontal: right; }
    ModelPicker Button { margin-left: 2; }
    """
    BINDINGS = [  # noqa: RUF012  Textual's form
        Binding("escape", "leave", "Cancel"),
        Binding("left_square_bracket", "context(-1)", "Less context"),
        Binding("right_square_bracket", "context(1)", "More context"),
        Binding("k", "kv_type", "KV type"),
        Binding("m", "measure", "Measure speeds"),
    ]

    def __init__(
        self,
        rows: Rows,
        look: Look,
        pull: Pull,
        load: Load,
        measure: Measure,
        *,
        wish: Wish = Wish(),  # noqa: B008  it cannot be changed
        current: str | None = None,
    ) -> None:
        super().__init__()
        self._read_rows = rows
        self._look = look
        self._pull = pull
        self._load = load
        self._measure = measure
        self._wished = wish.context_tokens
        self._wish = wish
        self._current = current
        self._here: Here | None = None
        self._models: list[Judged] = []
        self._table: DataTable[Text] = DataTable(cursor_type="row")
        self._note = Static()
        self._verdict = Static()
        self._keys = Static()
        self._bar = ProgressBar(total=1.0, show_eta=False)
        self._fraction = 0.0
        self._stop: Callable[[], object] | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Models"
            yield self._table
            yield self._note
            yield self._verdict
            yield self._keys
            yield self._bar
            with Horizontal():
                yield Button("Use", variant="primary", id="use", compact=True)
                yield Button("Cancel", id="leave", compact=True)

    def on_mount(self) -> None:
        self.set_interval(_PROGRESS_S, self._show_progress)
        for title in TITLES:
            self._table.add_column(title, key=title)
        self._list_rows(self._current)
        self._look_around()

    @work(exclusive=True, group="rows")
    async def _list_rows(self, focused: str | None) -> None:
        """List the models anew, each as it is known, with the cursor on one of them unless it is moved meanwhile."""
        self.workers.cancel_group(self, "verdicts")
        self._table.clear()
        self._models.clear()
        try:
            rows = self._read_rows()
            while (row := await asyncio.to_thread(next, rows, None)) is not None:
                self._models.append(Judged(row))
                self._table.add_row(*self._cells(self._models[-1]), key=row.name)
                if row.name == focused and self._table.cursor_row == 0:
                    self._table.move_cursor(row=len(self._models) - 1)
        except (AppError, ModelError) as error:
            self._say(str(error))
        self._judge()

    @work(exclusive=True, group="here")
    async def _look_around(self) -> None:
        self._here = await self._look()
        self._judge()

    @work(exclusive=True, group="verdicts")
    async def _judge(self) -> None:
        """Show the verdicts by what is wished now. Models of very many layers take their time."""
        self._show_keys()
        for at, model in enumerate(self._models):
            self._models[at] = found = await asyncio.to_thread(judged, model.row, self._here, self._wish)
            for title, cell in zip(TITLES, self._cells(found), strict=True):
                self._table.update_cell(model.row.name, title, cell, update_width=True)
            if at == self._table.cursor_row:
                self._show_verdict()
        self._show_verdict()

    def _cells(self, model: Judged) -> tuple[Text, ...]:
        style = "" if model.row.is_here else "dim"
        texts = cells(model, is_current=model.row.name == self._current)
        return tuple(Text(one_line(text), style) for text in texts)

    def _show_verdict(self) -> None:
        model, words = self._chosen(), words_to_begin_with(self._models)
        lines = [] if model is None else verdict_lines(model, words.get(model.row.name, ""))
        self._verdict.update(Content("\n".join(map(one_line, lines))))

    def _show_keys(self) -> None:
        tokens, kind = self._wish.context_tokens, self._wish.kv_type
        context = "what suits" if tokens is None else f"{tokens:,}"
        kv = "what suits" if kind is None else kind.value
        self._keys.update(Content(f"[ ] context: {context}   k KV: {kv}   m measure speeds"))

    def action_context(self, step: int) -> None:
        """Judge by, and load with, the next smaller or larger context."""
        steps = contexts([model.row for model in self._models], self._wished)
        at = steps.index(self._wish.context_tokens) + step if self._wish.context_tokens in steps else 0
        self._wish = replace(self._wish, context_tokens=steps[max(0, min(at, len(steps) - 1))])
        self._judge()

    def action_kv_type(self) -> None:
        """Judge by, and load with, the next type of KV."""
        at = KV_TYPES.index(self._wish.kv_type)
        self._wish = replace(self._wish, kv_type=KV_TYPES[(at + 1) % len(KV_TYPES)])
        self._judge()

    def action_measure(self) -> None:
        """Measure how fast weights are here."""
        if self._stop is None:
            self._measure_speeds()

    @work
    async def _measure_speeds(self) -> None:
        try:
            if await self._done("measuring how fast weights are here", self._measure(self._progress)):
                self._say("measured: speeds are predicted from now on")
                self._look_around()
        except (AppError, OSError) as error:
            self._say(str(error))
        finally:
            self._end()

    def on_data_table_row_highlighted(self) -> None:
        self._show_verdict()
        if self._stop is None and (model := self._chosen()) is not None:
            self._say(model.row.note)

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

    def _chosen(self) -> Judged | None:
        at = self._table.cursor_row
        return self._models[at] if 0 <= at < len(self._models) else None

    def _take(self) -> None:
        if self._stop is None and (model := self._chosen()) is not None:
            self._fetch_and_load(model.row)

    @work
    async def _fetch_and_load(self, row: ModelRow) -> None:
        try:
            if not row.is_here:
                await self._fetch(row)
                self._list_rows(row.name)
            context = context_for(row, self._wish.context_tokens)
            loading = self._load(row.name, context, self._wish.kv_type, self._progress)
            if await self._done(f"loading {row.name}", loading):
                self.dismiss(row.name)
        except (AppError, ModelError, EngineError) as error:
            self._say(str(error))
            self._look_around()  # what was in memory may have left all the same
        finally:
            self._end()

    async def _fetch(self, row: ModelRow) -> None:
        stopped = threading.Event()
        self._begin(f"fetching {row.name}, {amounts.size(row.size_bytes)}", stopped.set)
        try:
            await asyncio.to_thread(self._pull, row.name, self._progress, stopped.is_set)
        finally:
            stopped.set()  # when the program ends, it waits for this thread

    async def _done(self, what: str, work: Awaitable[object]) -> bool:
        """Wait for some work; false where the user cancelled it."""
        working = asyncio.ensure_future(work)
        self._begin(what, working.cancel)
        try:
            await asyncio.wait((working,))
        finally:
            working.cancel()  # the program ends
        if working.cancelled():
            self._say(f"stopped {what}")
            return False
        working.result()
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
