"""Text that other people or models wrote must not drive the user's terminal."""

import contextlib
import sys
from typing import TextIO

import msgspec

from pinyon.app.control_codes import OBEYED
from pinyon.models import disk

_REPLACED = {code: chr(0x2400 + code) if code < 0x20 else "\ufffd" for code in OBEYED} | {0x7F: "\u2421"}


def printable(text: str) -> str:
    """Return text with every character that a terminal would obey, newline and tab apart, replaced by a visible sign."""
    return text.translate(_REPLACED)


def for_stdout(text: str) -> str:
    """Return text as stdout should get it: printable on a terminal, untouched into a pipe or file."""
    return printable(text) if sys.stdout.isatty() else text


def print_json(value: object, stream: TextIO | None = None) -> None:
    """Print a value as one line of JSON, paths as text; on stdout where no stream is given."""
    stream = sys.stdout if stream is None else stream
    text = msgspec.json.encode(value, enc_hook=disk.printable).decode()
    print(printable(text) if stream.isatty() else text, file=stream, flush=True)


def tell(text: str) -> None:
    """Print one line on stderr; where nobody reads that, nothing happens."""
    with contextlib.suppress(OSError):
        print(f"pinyon: {disk.printable(text)}", file=sys.stderr, flush=True)
