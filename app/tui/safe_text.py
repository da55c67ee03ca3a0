"""Text that models, files, titles, paths and errors bring, made safe for screen, log and clipboard.

What a terminal would obey is taken out, one character at a time: so text that comes in pieces loses the same, wherever it is cut.
"""

import re

# C0 but newline and tab, DEL, C1; bidi embeddings, overrides and isolates, which would turn round what stands beside them.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile("[\u2028\u2029]")
_UNENCODABLE = re.compile("[\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Return text without control codes. Newlines and tabs stay, Unicode's line breaks become newlines, lone surrogates U+FFFD."""
    return _UNENCODABLE.sub("\ufffd", _BREAKS.sub("\n", _OBEYED.sub("", text)))
