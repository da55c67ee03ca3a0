"""Token bytes to visible text: whole characters only, and never a part of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one answer, fed with the bytes of its tokens.

    A stop string ends the text before its own first character. With several, the one that is completed first decides;
    of those completed by the same character, the longest. So the result does not depend on how text is cut into tokens.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, data: bytes) -> str:
        """Return the text that may be shown now. After `stopped` is set, nothing more comes."""
        return self._release(self._decoder.decode(data))

    def flush(self) -> str:
        """Return what was held back, at the end of the answer; an incomplete character gives one U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
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
