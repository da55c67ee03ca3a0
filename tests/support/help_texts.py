"""The help texts of commands in README.md: they stand after `<!-- help: COMMAND -->`, up to `<!-- end -->`.

Run as a script, it writes them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
_PLACE = re.compile(r"<!-- help: (?P<command>[a-z]+) -->\n(?P<text>.*?)<!-- end -->\n", re.DOTALL)


def help_text(name: str) -> str:
    """Return what `pinyon NAME --help` prints on a terminal of 80 columns. Raises CalledProcessError where there is none."""
    command = [sys.executable, "-m", "pinyon", name, "--help"]
    shown = subprocess.run(
        command, env={**os.environ, "COLUMNS": "80"}, capture_output=True, encoding="utf-8", check=True
    )
    return shown.stdout.replace("python -m pinyon", "pinyon").rstrip()


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
