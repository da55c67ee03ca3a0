"""`@` in the prompt: the files and folders that its word may mean, as a list under the cursor's keys."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pinyon.app.tui.safe_text import one_line

SHOWN: Final = 50
_MENTION: Final = re.compile(r"(?:^|(?<=\s))@(\S*)$")


@dataclass(frozen=True, slots=True)
class Choice:
    """A path as the user would type it; a folder's ends with a slash."""

    path: str

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")


@dataclass(frozen=True, slots=True)
class Choices:
    """The first of the paths that fit, and how many more there are."""

    shown: tuple[Choice, ...] = ()
    more: int = 0


def mention(before_cursor: str) -> str | None:
    """Return what was typed after the `@` whose word the cursor is in; None outside of such a word."""
    found = _MENTION.search(before_cursor)
    return None if found is None else found[1]


def choices(typed: str, base: Path) -> Choices:
    """Return what is in the folder that was typed so far and has the rest in its name: first what begins with it.

    Relative paths start at `base`. Hidden files are left out until a dot is typed; pipes and devices always are.
    """
    head, slash, rest = typed.rpartition("/")
    start = head + slash
    wanted = rest.casefold()
    try:
        folder = base / Path(start).expanduser()
        with os.scandir(folder) as entries:
            fitting = [entry for entry in entries if _fits(entry.name, wanted)]
    except (OSError, RuntimeError, ValueError):  # no such folder, an unknown user, a zero byte
        return Choices()
    fitting.sort(key=lambda entry: (not entry.name.casefold().startswith(wanted), entry.name.casefold()))
    paths = [start + entry.name + "/" * entry.is_dir() for entry in fitting if entry.is_dir() or entry.is_file()]
    return Choices(tuple(map(Choice, paths[:SHOWN])), max(0, len(paths) - SHOWN))


def _fits(name: str, wanted: str) -> bool:
    return wanted in name.casefold() and (wanted.startswith(".") or not name.startswith("."))


class PathPicker(OptionList, can_focus=False):
    """Shown while `look_up` finds something. The prompt keeps the focus and hands on what its keys mean."""

    DEFAULT_CSS = """
    PathPicker { height: auto; max-height: 8; display: none; border: none; padding: 0 1; }
    PathPicker.-some { display: block; }
    """

    class Picked(Message):
        """A path was clicked."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, base: Path, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id)
        self._base = base
        self._typed: str | None = None
        self._choices = Choices()

    @property
    def choice(self) -> Choice | None:
        """What Enter or Tab would take; None while nothing is shown."""
        at = self.highlighted
        return None if at is None or not self.is_open or at >= len(self._choices.shown) else self._choices.shown[at]

    @property
    def is_open(self) -> bool:
        return self.has_class("-some")

    async def look_up(self, before_cursor: str) -> None:
        """Show what the mention at the end of this text may mean; without one nothing is shown."""
        typed = self._typed = mention(before_cursor)
        found = Choices() if typed is None else await asyncio.to_thread(choices, typed, self._base)
        if typed == self._typed:  # else more was typed meanwhile
            self._show(found)

    def move(self, step: int) -> None:
        """Go to the next choice (1) or the one before (-1)."""
        if step > 0:
            self.action_cursor_down()
        else:
            self.action_cursor_up()

    def close(self) -> None:
        """Show nothing until the next look-up."""
        self._typed = None
        self._show(Choices())

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Picked(self._choices.shown[event.option_index]))

    def _show(self, found: Choices) -> None:
        self._choices = found
        options = [Option(Content(one_line(choice.path))) for choice in found.shown]
        if found.more:
            options.append(Option(Content(f"and {found.more:,} more: type on"), disabled=True))
        self.set_options(options)
        self.highlighted = 0 if found.shown else None
        self.set_class(bool(found.shown), "-some")
