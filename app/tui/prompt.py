"""Where the user writes: enter sends, the field grows with the text to ten lines, and what was pasted may become a chip."""

from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from pinyon.app.tui.chips import is_large
from pinyon.app.tui.commands import key_of
from pinyon.app.tui.dropped import dropped_paths
from pinyon.app.tui.path_picker import Choice, PathPicker, mention
from pinyon.app.tui.safe_text import safe_text


class Prompt(TextArea):
    """Posts what was sent and what else was meant; it does nothing with it."""

    DEFAULT_CSS = """
    Prompt { height: auto; min-height: 3; max-height: 12; border: round $border; padding: 0 1; background: $background; }
    Prompt:focus { border: round $primary; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key_of("send"), "send", "Send", id="send"),
        Binding(key_of("newline"), "newline", "New line", show=False, id="newline"),
        Binding("up", "up", "Earlier message", show=False),
        Binding("down", "down", "Later message", show=False),
    ]

    class Sent(Message):
        """The user wants this said, or this slash command done."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Pasted(Message):
        """Something too large for the field, or the paths of files that were dropped on the terminal."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Attach(Message):
        """The user chose a file or folder behind an @."""

        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

    class Recall(Message):
        """The cursor went above the first line, or below the last: `steps` back."""

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

    def __init__(self, picker: PathPicker, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        """`picker` shows what the word behind an @ may mean; while it does, it gets the keys that choose."""
        super().__init__(id=id, placeholder="Say something, or / for commands", highlight_cursor_line=False)
        self._picker = picker
        self.cursor_blink = False  # each blink would repaint beside the inference

    def take(self) -> str:
        """Empty the field; return what was in it."""
        text = self.text
        self.clear()
        return text

    def put(self, text: str) -> None:
        """Put a text in the place of what is there, the cursor behind it."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        if (choice := self._picker.choice) is None:
            self.post_message(self.Sent(self.text))
        else:
            self.pick(choice)

    def action_delete_left(self) -> None:
        if not self.text:
            raise SkipAction  # the key removes an attachment
        super().action_delete_left()

    def action_newline(self) -> None:
        self.insert("\n")

    def action_up(self) -> None:
        if self._picker.is_open:
            self._picker.move(-1)
        elif self.cursor_at_first_line:
            self.post_message(self.Recall(1))
        else:
            self.action_cursor_up()

    def action_down(self) -> None:
        if self._picker.is_open:
            self._picker.move(1)
        elif self.cursor_at_last_line:
            self.post_message(self.Recall(-1))
        else:
            self.action_cursor_down()

    def pick(self, choice: Choice) -> None:
        """Take a path in the place of the mention before the cursor: a folder is gone into, a file is attached."""
        row, column = self.cursor_location
        typed = mention(self._before_cursor()) or ""
        start = (row, column - len(typed) - 1)
        if choice.is_folder:
            self.replace(f"@{choice.path}", start, (row, column))
        else:
            self.replace("", start, (row, column))
            self.post_message(self.Attach(choice.path))

    async def on_key(self, event: events.Key) -> None:
        # A priority binding would send before the letters that were typed ahead of it are there.
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self and bound.binding.id is not None:
            event.prevent_default().stop()
            await self.run_action(bound.binding.action)
        elif self._picker.is_open and event.key in {"tab", "escape"}:
            event.prevent_default().stop()
            choice = self._picker.choice
            if event.key == "tab" and choice is not None:
                self.pick(choice)
            else:
                self._picker.close()

    async def on_text_area_selection_changed(self) -> None:
        await self._picker.look_up(self._before_cursor())

    async def on_paste(self, event: events.Paste) -> None:
        event.prevent_default().stop()
        if is_large(event.text) or dropped_paths(event.text):
            self.post_message(self.Pasted(event.text))
        else:
            start, end = self.selection
            self.replace(safe_text(event.text.replace("\r\n", "\n").replace("\r", "\n")), start, end)

    def _before_cursor(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]
