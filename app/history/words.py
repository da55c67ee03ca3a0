"""What of a text is searched, and how what a user types becomes a query: whatever it is, it is only words.

FTS5's tokenizer takes a run of letters for a word. Some scripts write no spaces: there each letter is made a word of its own, and a
word of a query a phrase of such letters.
"""

import re
import secrets
from typing import Final, NamedTuple

_SEPARATOR: Final = "\x1f"
"""Not a letter, and not in what is searched."""
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff])"
)  # Thai, Lao, Myanmar, Khmer, Japanese and Chinese
_BLANK: Final = re.compile(r"\s")
_MAX_WORDS: Final = 32


def searchable(text: str) -> str:
    """Return the text as it is searched."""
    return _UNSPACED.sub(f"{_SEPARATOR}\\1{_SEPARATOR}", text.replace(_SEPARATOR, " "))


def query(words: str) -> str:
    """Return an FTS5 query for texts that hold all of these words; the last one may go on, unless a blank follows it.

    Empty where there is nothing to search for. What stands in double quotes is a phrase. Only the first 32 words count.
    A single letter does not go on: nearly every text would be found, at the price of an index as large as the texts.
    """
    typed = words.encode("utf-8", "replace").decode().replace("\0", " ")
    terms = [term for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', typed) if _has_letter(term := quoted or word)]
    if not terms:
        return ""
    may_go_on = len(terms[-1]) > 1 and typed.endswith(terms[-1])
    return " ".join(map(_phrase, terms[:_MAX_WORDS])) + ("*" if may_go_on else "")


def begins(column: str, value: str) -> str:
    """Return a query for what begins with these words in a column, the last one perhaps going on; empty where there are none."""
    return f"{column} : ^ {_phrase(value)} *" if _has_letter(value) else ""


def _has_letter(term: str) -> bool:
    return any(map(str.isalnum, term))


def _phrase(term: str) -> str:
    return '"' + searchable(term).replace('"', '""') + '"'


class Marks(NamedTuple):
    """What FTS5 puts around the words in a snippet: no text can hold it, since nobody knows it before the search."""

    begin: str
    end: str

    @classmethod
    def new(cls) -> "Marks":
        secret = secrets.token_hex(8)
        return cls(f"<{secret}", f"{secret}>")

    def read(self, snippet: str) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the snippet in one line without its marks, and where in it the words are (start, end)."""
        text, ranges, start = "", [], 0
        for part in re.split(f"({self.begin}|{self.end})", _BLANK.sub(" ", snippet.replace(_SEPARATOR, ""))):
            if part == self.begin:
                start = len(text)
            elif part == self.end:
                ranges.append((start, len(text)))
            else:
                text += part
        return text, tuple(ranges)
