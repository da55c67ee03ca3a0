"""The conversations that are kept, the latest first."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pinyon.app.history.records import Conversation
from pinyon.app.tui.safe_text import safe_text


class Sidebar(OptionList):
    """Enter or a click opens a conversation, delete deletes it."""

    DEFAULT_CSS = """
    Sidebar { width: 32; height: 1fr; border: none; border-right: vkey $border; padding: 0; background: $surface; }
    Sidebar:focus { border: none; border-right: vkey $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("delete,d", "delete", "Delete", show=False)]

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

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id, markup=False)
        self._shown: tuple[tuple[str, str], ...] = ()

    def show(self, conversations: Sequence[Conversation], current: str | None) -> None:
        """Show these; costs nothing where nothing has changed."""
        shown = tuple((each.id, each.title) for each in conversations)
        if shown != self._shown:
            self._shown = shown
            self.clear_options()
            self.add_options(Option(_line(title), id) for id, title in shown)  # noqa: A001
        place = next((place for place, (id, _) in enumerate(shown) if id == current), None)  # noqa: A001
        if place != self.highlighted and not self.has_focus:
            self.highlighted = place

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Chosen(event.option_id))

    def action_delete(self) -> None:
        if self.highlighted is not None and (option := self.get_option_at_index(self.highlighted)).id is not None:
            self.post_message(self.Unwanted(option.id))


def _line(title: str) -> Content:
    return Content(safe_text(title).replace("\n", " ") or "untitled")
