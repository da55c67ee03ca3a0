"""What a program writes to its terminal, byte by byte, and which of it a terminal would obey."""

import re
from collections.abc import Mapping, Sequence

from terminal import terminal

_SEQUENCE = re.compile(
    r"\x1b\].*?(?:\x07|\x1b\\)|\x1b[PX^_].*?\x1b\\|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b",
    re.DOTALL,
)
_STYLE_OR_PLACE = re.compile(r"\x1b\[[0-9;]*[mH]")
_USUAL_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")


def written(command: Sequence[str], environment: Mapping[str, str], steps: Sequence[tuple[str, bytes]]) -> str:
    """Run a program in a terminal of 120x40: each step waits for a text and then types; return all that was written."""
    with terminal(command, environment, (120, 40)) as shown:
        for awaited, typed in steps:
            shown.waits_for(re.escape(awaited.encode()))
            shown.types(typed)
        shown.ends()
        return shown.written.decode("utf-8", "surrogateescape")


def obeyed(capture: str) -> set[str]:
    """Return the control sequences and control characters in a capture; styles and places with their usual numbers as 0."""
    return {
        _USUAL_NUMBER.sub("0", sequence) if _STYLE_OR_PLACE.fullmatch(sequence) else sequence
        for sequence in _SEQUENCE.findall(capture)
    }
