from pathlib import Path

import pytest
from textual import events
from textual.app import App, ComposeResult

from pinyon.app.tui.path_picker import PathPicker
from pinyon.app.tui.prompt import Prompt


class Chat(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.picker = PathPicker(Path("/"))
        self.prompt = Prompt(self.picker)
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.picker
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        self.sent.append(event.text)

    def type_at_once(self, *keys: str) -> None:
        """Keys that were pressed before the program looked: nothing is worked off between two of them."""
        for key in keys:
            self.post_message(events.Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize("keymap", [{}, {"send": "ctrl+y", "newline": "enter"}])
async def test_keys_act_in_the_order_in_which_they_were_pressed(keymap: dict[str, str]) -> None:
    app = Chat()
    app.set_keymap(keymap)
    async with app.run_test() as pilot:
        app.type_at_once("a", keymap.get("newline", "ctrl+j"), "b", keymap.get("send", "enter"))
        await pilot.pause()
        assert app.sent == ["a\nb"]
