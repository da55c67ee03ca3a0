"""Texts as models write them, and as nobody should: for tests of whatever shows them."""

import itertools
import random

from hypothesis import strategies as st

PIECES = (
    "# Title\n", "text\n", "\n", "\n\n", "- item\n", "* star\n", "1. one\n", "2) two\n", "  - nested\n", "    code\n", "```\n", "```python\n", "~~~\n",
    "| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "> quote\n", "---\n", "***\n", "===\n", "some **bold** and `code`", "x", " ", "\t", "|", "-", "`", "#", "1.",
    "<b>html</b>\n", "[a]: b\n", "[a](b)", "![i](j)", "&lt;", "\\*",
)  # fmt: skip

HOSTILE = (
    "[/]", "[b", "[bold [/ a[b +", "[/INST]", "[0]", "[@click=app.quit]x[/]", "[link=http://x]y[/link]", "]]]]", "[[[[", "\\[", "$primary",
    "\x1b[2J", "\x1b]52;c;SGk=\x07", "\x1b]8;;http://x\x1b\\", "\x1b]0;title\x07", "\x1bc", "\x9b31m", "\x9d52;c;eA==\x9c", "\r", "\b\b\b", "\x07",
    "\u202e", "\u2066", "\u2028", "\ud800", "&#27;[2J", "&#x202e;", "\x00", "漢字", "👩‍👩‍👧‍👦", "e\u0301\u0301\u0301", "שלום", "<script>", "word", " ", "\n", "\n\n",
)  # fmt: skip

documents = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def hostile_text(seed: int) -> str:
    """Return a text of hostile fragments between Markdown, the same for the same seed."""
    chosen = random.Random(seed)
    return "".join(chosen.choice(HOSTILE if chosen.random() < 0.6 else PIECES) for _ in range(chosen.randrange(1, 24)))


def cut_at(text: str, cuts: list[int]) -> list[str]:
    """Return the text in pieces, cut at these places modulo its length."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]
