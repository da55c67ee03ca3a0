"""Search over all conversations as one types, with filters among the words; a hit jumps to its message."""

import time
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pinyon.app.errors import UsageError
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.history import History
from pinyon.app.history.records import Found
from pinyon.app.search_query import query_of
from pinyon.app.tui.safe_text import one_line, safe_text

PAUSE_S: Final = 0.1
"""How long the user may type before it is searched."""


class SearchScreen(ModalScreen[Found | None]):
    """Returns what was chosen."""

    DEFAULT_CSS = """
    SearchScreen .note { display: none; color: $text-muted; padding: 0 1; }
    SearchScreen.-note .note { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
    ]

    def __init__(self, history: History, words: str = "") -> None:
        super().__init__()
        self._history = history
        self._words = words
        self._found: list[Found] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Search all conversations"
            box.border_subtitle = "role:user  model:NAME  since:7d"
            yield Input(self._words, placeholder="words", select_on_focus=False)
            yield Static(classes="note")
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        self._search()

    def on_input_changed(self) -> None:
        self.set_timer(PAUSE_S, self._search_if_settled)

    def on_input_submitted(self) -> None:
        self._search()
        place = self.query_one(OptionList).highlighted
        if place is not None:
            self.dismiss(self._found[place])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])

    def action_move(self, steps: int) -> None:
        options = self.query_one(OptionList)
        if self._found:
            options.highlighted = ((options.highlighted or 0) + steps) % len(self._found)

    def _search_if_settled(self) -> None:
        if self.query_one(Input).value != self._words:
            self._search()

    def _search(self) -> None:
        self._words = self.query_one(Input).value
        self._found, note = [], ""
        try:
            query = query_of(self._words)
            self._found = self._history.search(query.words, role=query.role, model=query.model, since=query.since)
            if not self._found and self._words.strip():
                note = "nothing found"
        except UsageError as error:
            note = str(error)
        except HistoryFileError as error:
            self.notify(safe_text(str(error)), severity="error", markup=False)
        self.query_one(".note", Static).update(Content(safe_text(note)))
        self.set_class(bool(note), "-note")
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(_lines(found)) for found in self._found)
        options.highlighted = 0 if self._found else None


def _lines(found: Found) -> Content:
    """A hit: its conversation's title, then its snippet with the matches marked."""
    snippet = Content(one_line(found.snippet))  # as long as the text that the ranges are about
    for start, end in found.matches:
        snippet = snippet.stylize("bold underline", start, end)
    when = time.strftime("%Y-%m-%d", time.localtime(found.conversation.updated_at))
    head = Content.assemble((one_line(found.conversation.title), "bold"), f"  {found.role}, {when}")
    return Content("\n").join([head, snippet])
