"""Tells a model's thoughts from its answer while the text streams in.

A block opens where the start tag stands outside of code: an answer that explains the tag in backticks stays an answer. An end tag
with nothing before it is dropped. Only tags and the white space around them are lost.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pinyon.engine.request import Reasoning


class Part(NamedTuple):
    text: str
    is_reasoning: bool


class _Cut(NamedTuple):
    """A tag's place in the held text, and on which side the text after it is."""

    start: int
    end: int
    inside: bool


class ReasoningSplitter:
    """The text of one answer, fed as it comes. `inside` tells on which side the next text falls."""

    def __init__(self, tags: Reasoning) -> None:
        self.inside = tags.opened
        self._tags = tags
        self._may_open = True
        self._held = ""
        self._blocks = int(tags.opened)
        self._began = False  # the current side has shown more than white space
        self._backticks = 0

    def begin_answer(self) -> str:
        """From now on all text is the answer's, tags and white space too; return what of it is still held."""
        if self._blocks and not self._began:
            self._held = self._held.lstrip()
        self._may_open, self._began = False, True
        return self._held

    def push(self, text: str) -> Iterator[Part]:
        """Yield what can be told apart now."""
        self._held += text
        while (cut := self._next_cut()) is not None:
            before, self._held = self._held[: cut.start], self._held[cut.end :]
            is_margin = not self._began and not before.strip()
            yield from self._show(before.rstrip() if self.inside or is_margin else before)
            self._blocks += cut.inside
            self.inside, self._began = cut.inside, False
        ready = len(self._held) - self._undecided()
        text, self._held = self._held[:ready], self._held[ready:]
        yield from self._show(text)

    def flush(self) -> Iterator[Part]:
        """Yield what was held back, at the end of the answer."""
        text, self._held = self._held, ""
        yield from self._show(text)

    def _next_cut(self) -> _Cut | None:
        if self.inside or not self._began:
            start, end = _first(self._held, self._tags.ends)
            if end and (self.inside or not self._held[:start].strip()):
                return _Cut(start, end, inside=False)
        return None if self.inside or not self._may_open else self._opening()

    def _opening(self) -> _Cut | None:
        """Return the first start tag that does not stand between backticks."""
        tag, at = self._tags.start, -1
        while (at := self._held.find(tag, at + 1)) >= 0:
            if (self._backticks + self._held.count("`", 0, at)) % 2 == 0:
                return _Cut(at, at + len(tag), inside=True)
        return None

    def _undecided(self) -> int:
        """Return how many characters at the end may belong to a tag or to the white space around one."""
        if self.inside:
            rest = len(self._held) - _begun(self._held, self._tags.ends)
            return len(self._held) - len(self._held[:rest].rstrip())
        awaited = [self._tags.start] if self._may_open else []
        if not self._began:
            awaited += self._tags.ends
            if not self._held[: len(self._held) - _begun(self._held, awaited)].strip():
                return len(self._held)
        return _begun(self._held, awaited)

    def _show(self, text: str) -> Iterator[Part]:
        if not self._began and self._blocks:
            text = text.lstrip()
        if not text:
            return
        if not self._began and self.inside and self._blocks > 1:
            text = f"\n{text}"
        self._began = self._began or bool(text.strip())
        if not self.inside:
            self._backticks += text.count("`")
        yield Part(text, self.inside)


def _first(text: str, tags: Sequence[str]) -> tuple[int, int]:
    """Return where the first complete tag begins and ends; (0, 0) where there is none."""
    return min(((at, at + len(tag)) for tag in tags if (at := text.find(tag)) >= 0), default=(0, 0))


def _begun(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest end of `text` with which a tag begins."""
    longest = max(map(len, tags), default=1)
    return next(
        (n for n in range(min(longest - 1, len(text)), 0, -1) if any(tag.startswith(text[-n:]) for tag in tags)), 0
    )
