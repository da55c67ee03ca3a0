"""What clients were answered lately, as text in which to look for what may come again."""

from collections.abc import Hashable, Sequence
from typing import Final

from pinyon.engine.suffix_index import BREAK, SuffixIndex

KEPT_TOKENS: Final = 8_192
"""Of one client; up to twice as many until the older ones go."""
CLIENTS: Final = 64


class RecentAnswers:
    """Of some clients, those that were answered last."""

    def __init__(self) -> None:
        self._texts: dict[Hashable, list[int]] = {}
        self._indexes: dict[Hashable, SuffixIndex] = {}

    def of(self, client: Hashable) -> SuffixIndex | None:
        """Return the index of what a client was answered, if there is anything."""
        return self._indexes.get(client)

    def add(self, client: Hashable, answer: Sequence[int]) -> None:
        """Keep an answer's tokens."""
        text = self._texts.pop(client, [])
        index = self._indexes.pop(client, None)
        text += (*answer, BREAK)
        if len(text) > 2 * KEPT_TOKENS or index is None:
            text = text[-KEPT_TOKENS:]
            index = SuffixIndex(text)
        self._texts[client], self._indexes[client] = text, index
        while len(self._texts) > CLIENTS:
            oldest = next(iter(self._texts))
            del self._texts[oldest], self._indexes[oldest]

    def clear(self) -> None:
        self._texts.clear()
        self._indexes.clear()
