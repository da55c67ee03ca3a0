"""The help texts of commands in README.md: they stand after `<!-- help: COMMAND -->`, up to `<!-- end -->`.

Run as a script, it writes them.
"""

import re
import sys
from pathlib import Path

import click

from pinyon.app.cli.main import pinyon

README = Path(__file__).resolve().parents[2] / "README.md"
WIDTH = 110
_PLACE = re.compile(r"<!-- help: (?P<command>[a-z]+) -->\n(?P<text>.*?)<!-- end -->\n", re.DOTALL)


def help_text(name: str) -> str:
    """Return what `pinyon NAME --help` prints, at a fixed width. Raises ValueError for a name that is no command."""
    root = click.Context(pinyon, info_name="pinyon", terminal_width=WIDTH, **pinyon.context_settings)
    command = pinyon.get_command(root, name)
    if command is None:
        raise ValueError(f"there is no command `pinyon {name}`")
    return command.get_help(click.Context(command, info_name=name, parent=root, terminal_width=WIDTH))


def with_help(text: str) -> str:
    """Return a document with the help texts as they are now."""

    def written(place: re.Match[str]) -> str:
        name = place["command"]
        return f"<!-- help: {name} -->\n```\n{help_text(name)}\n```\n<!-- end -->\n"

    return _PLACE.sub(written, text)


if __name__ == "__main__":
    before = README.read_text("utf-8")
    README.write_text(after := with_help(before), "utf-8")
    print("README.md is as it was" if before == after else "README.md has the help texts of now", file=sys.stderr)
