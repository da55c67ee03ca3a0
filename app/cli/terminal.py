"""Text that other people or models wrote must not drive the user's terminal."""

import sys

_ALLOWED = "\n\t"
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _ALLOWED}
_REPLACED = {**_PICTURES, 0x7F: "\u2421", **dict.fromkeys(range(0x80, 0xA0), "\ufffd")}


def printable(text: str) -> str:
    """Return text with every control character but newline and tab replaced by a visible sign."""
    return text.translate(_REPLACED)


def for_stdout(text: str) -> str:
    """Return text as stdout should get it: printable on a terminal, untouched into a pipe or file."""
    return printable(text) if sys.stdout.isatty() else text
