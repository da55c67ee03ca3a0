"""The conversations that are kept, the latest first; older ones come when one scrolls to them."""

from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.history import History
from pinyon.app.tui.safe_text import one_line

PAGE: Final = 200
"""How many are read at a time."""


class Sidebar(OptionList):
    """Enter or a click opens a conversation, delete deletes it."""

    DEFAULT_CSS = """
    Sidebar {
        width: 32; height: 1fr; border: none; border-right: vkey $border; padding: 0; background: $surface;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Sidebar:focus { border: none; border-right: vkey $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,d", "delete", "Delete", show=False, id="delete_conversation")
    ]

    class Chosen(Message):
        """This conversation is to be opened."""

        def __init__(self, conversation: str) -> None:
            super().__init__()
            self.conversation = conversation

    class Unwanted(Message):
        """This conversation is to be deleted."""

        def __init__(self, conversation: str) -> None:
            super().__init__()
            self.conversation = conversation

    def __init__(self, history: History, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id, markup=False)
        self._history = history
        self._version = -1
        self._shown: tuple[tuple[str, str], ...] = ()
        self._has_older = False

    def look(self, current: str | None) -> None:
        """Show what has changed in the history; costs nothing where nothing has. The current one is marked."""
        if self._version != self._history.list_version:
            self._read(max(PAGE, len(self._shown)))
        if not self.has_focus:
            self._mark(current)

    def on_show(self) -> None:
        self._read(max(PAGE, len(self._shown)))  # other processes have conversations, too

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self._has_older and new + 2 * self.size.height > self.max_scroll_y:
            self._read(len(self._shown) + PAGE)

    def _read(self, count: int) -> None:
        self._version = self._history.list_version
        try:
            listed = self._history.conversations(limit=count)
        except HistoryFileError:  # whoever opens one is told; what was read before stays
            return
        self._has_older = len(listed) == count
        shown = tuple((each.id, each.title) for each in listed)
        if shown[: len(self._shown)] == self._shown:
            self.add_options(_option(*each) for each in shown[len(self._shown) :])
            self._shown = shown
        else:
            marked, place = self.highlighted_option, self.scroll_y
            self._shown = shown
            self.set_options(_option(*each) for each in shown)
            self._mark(None if marked is None else marked.id)
            self.call_after_refresh(self.scroll_to, y=place, animate=False)

    def _mark(self, conversation: str | None) -> None:
        place = next((place for place, (id, _) in enumerate(self._shown) if id == conversation), None)  # noqa: A001
        if place != self.highlighted:
            self.highlighted = place

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Chosen(event.option_id))

    def action_delete(self) -> None:
        if self.highlighted is not None and (option := self.get_option_at_index(self.highlighted)).id is not None:
            self.post_message(self.Unwanted(option.id))


def _option(id: str, title: str) -> Option:  # noqa: A002
    return Option(Content(one_line(title) or "untitled"), id)
