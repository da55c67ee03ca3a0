"""The chat as a Textual application: themes, keys, the palette, and how it is left."""

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import TextArea

from pinyon.app.errors import SettingsError
from pinyon.app.settings import Settings
from pinyon.app.tui import commands
from pinyon.app.tui.chat_screen import ChatScreen
from pinyon.app.tui.themes import DARK, LIGHT

AGAIN_S: Final = 2.0
"""How soon the second Ctrl+C must follow the first one to leave."""


class ChatApp(App[None]):
    """Shows one chat screen. `fault` is the exception that ended it, if one did; it is for the caller to report.

    Raises:
        SettingsError: the keys or the theme of the settings cannot be used.
    """

    CSS_PATH = "chat.tcss"
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (12, "-high")]  # noqa: RUF012  Textual's form; the chat has its own
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(commands.key_of(action), name, show=False, priority=True, id=action)
        for action, name in (("interrupt", "interrupt"), ("quit", "quit"), ("palette", "command_palette"))
    ]

    def __init__(self, chat: ChatScreen, settings: Settings) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.animation_level = "none"  # the machine has better things to compute
        self._chat = chat
        self._interrupted_at = 0.0
        self._use_theme(settings.theme)
        self._use_keys(settings.keys)

    def get_default_screen(self) -> Screen[None]:
        return self._chat

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield what the palette offers: the table of actions."""
        if screen is self._chat:
            for action in commands.ACTIONS:
                if action.slash:
                    yield SystemCommand(action.title, f"/{action.slash}", partial(self._chat.do, action.id))

    async def action_interrupt(self) -> None:
        """Copy what is selected, and no more of it; else stop what goes on, and leave at the second time."""
        now = time.monotonic()
        if selected := self._take_selected():
            self._chat.do("copy_text", selected)
        elif now - self._interrupted_at < AGAIN_S:
            self.exit()
        else:
            self._interrupted_at = now
            self._chat.do("stop")
            self._chat.told("the same key once more leaves")

    def _take_selected(self) -> str:
        """Return the selected text, which then is not selected any more."""
        focused = self.focused
        if isinstance(focused, TextArea) and (selected := focused.selected_text):
            focused.move_cursor(focused.cursor_location)
        else:
            selected = self.screen.get_selected_text() or ""
            self.screen.clear_selection()
        return selected

    def _use_keys(self, keys: Mapping[str, str]) -> None:
        commands.keymap(keys)
        self.set_keymap(keys)
        for action in commands.ACTIONS:
            if not action.key and action.id in keys:  # a keymap changes keys, it gives none
                self.bind(keys[action.id], f"screen.do('{action.id}')", description=action.title, show=False)

    def _use_theme(self, name: str | None) -> None:
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        if name is not None and name not in self.available_themes:
            raise SettingsError(
                f"there is no theme {name!r}; the themes are {', '.join(sorted(self.available_themes))}"
            )
        self.theme = name or DARK.name

    def _handle_exception(self, error: Exception) -> None:
        """Leave in good order instead of printing a traceback; in tests the base class shows it."""
        if self.is_headless:
            super()._handle_exception(error)
        else:
            self.fault = self.fault or error
            self._return_code = 1
            self._close_messages_no_wait()
