"""Small screens in front of the chat: a text to read, and a line to write."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from pinyon.app.tui.safe_text import safe_text


class TextDialog(ModalScreen[bool]):
    """Shows a text; True where it is to be copied."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss(False)", "Close"),
        Binding("y", "dismiss(True)", "Copy"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(safe_text(self._title))
            box.border_subtitle = "y copies, escape closes"
            with VerticalScroll():
                yield Static(Content(safe_text(self._text)))


class LineDialog(ModalScreen[str | None]):
    """Asks for a line; None where the user thought better of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(safe_text(self._question))
            box.border_subtitle = "enter confirms, escape cancels"
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
