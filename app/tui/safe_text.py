"""Text that models, files, titles, paths and errors bring, made safe for screen, log and clipboard.

What a terminal would obey is taken out, one character at a time: so text that comes in pieces loses the same, wherever it is cut.
"""

import re

from pinyon.app.control_codes import OBEYED

_OBEYED = re.compile(f"[{re.escape(''.join(map(chr, sorted(OBEYED))))}]")
_BREAKS = re.compile("[\u2028\u2029]")
_BLANKS = str.maketrans("\n\t", "  ")
_UNENCODABLE = re.compile("[\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Return text without control codes. Newlines and tabs stay, Unicode's line breaks become newlines, lone surrogates U+FFFD."""
    return _UNENCODABLE.sub("\ufffd", _BREAKS.sub("\n", _OBEYED.sub("", text)))


def one_line(text: str) -> str:
    """Return safe text with blanks for its newlines and tabs: as long as `safe_text` returns it."""
    return safe_text(text).translate(_BLANKS)
