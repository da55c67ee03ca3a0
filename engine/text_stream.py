"""Token bytes to visible text: whole characters only, thoughts apart from the answer, and never a part of a stop string."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pinyon.engine.reasoning import Part, ReasoningSplitter
from pinyon.engine.request import Reasoning


class Visible(NamedTuple):
    """What may be shown now: of the answer, and of the thoughts."""

    text: str = ""
    reasoning: str = ""


NOTHING: Final = Visible()


class TextStream:
    """The text of one answer, fed with the bytes of its tokens.

    A stop string ends the answer before its own first character; thoughts may contain it. With several, the one that is
    completed first decides; of those completed by the same character, the longest. So the result does not depend on how
    text is cut into tokens.
    """

    def __init__(self, stops: Sequence[str] = (), reasoning: Reasoning | None = None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = None if reasoning is None else ReasoningSplitter(reasoning)
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=0)
        self._held = ""
        self._pushed = ""  # the answer's part of the last push
        self.stopped = False

    @property
    def in_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.inside

    def begin_answer(self) -> bytes:
        """From now on everything is part of the answer; return what of it the last push brought, shown or held back."""
        held = "" if self._splitter is None else self._splitter.begin_answer()
        cut_character, _ = self._decoder.getstate()
        return (self._pushed + held).encode() + cut_character

    def push(self, data: bytes) -> Visible:
        """Return what may be shown now. After `stopped` is set, nothing more comes."""
        self._pushed = ""
        return self._show(self._decoder.decode(data))

    def flush(self) -> Visible:
        """Return what was held back, at the end of the answer; an incomplete character gives one U+FFFD."""
        shown = self._show(self._decoder.decode(b"", final=True))
        rest = NOTHING if self._splitter is None else self._sort(self._splitter.flush())
        held, self._held = self._held, ""
        return Visible(shown.text + rest.text + held, shown.reasoning + rest.reasoning)

    def _show(self, text: str) -> Visible:
        if self._splitter is None:
            return Visible(self._release(text))
        return self._sort(self._splitter.push(text))

    def _sort(self, parts: Iterable[Part]) -> Visible:
        text = reasoning = ""
        for part in parts:
            if self.stopped:
                break
            if part.is_reasoning:
                reasoning += part.text
            else:
                text += self._release(part.text)
        return Visible(text, reasoning)

    def _release(self, new: str) -> str:
        self._pushed += new
        if self.stopped:
            return ""
        text = self._held + new
        if not self._stops:
            return text
        cut = self._first_stop(text)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return text[:cut]
        keep = self._possible_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _first_stop(self, text: str) -> int | None:
        """Return where the first completed stop string begins."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_stop(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest_stop - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
