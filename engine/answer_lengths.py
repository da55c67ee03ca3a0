"""How long answers get here, as far as past ones tell."""

from typing import Final

_MEMORY: Final = 0.1
"""The weight of the newest answer in the running mean."""
_GUESSED_TOKENS: Final = 200


class AnswerLengths:
    """A running mean. What has gone on for longer than that is expected to go on for as long again as it is above it, at least."""

    def __init__(self) -> None:
        self._mean = float(_GUESSED_TOKENS)

    def take(self, tokens: int) -> None:
        """Take note of an answer that has ended."""
        self._mean += _MEMORY * (tokens - self._mean)

    def rest(self, tokens: int) -> int:
        """Return how many tokens are likely to follow the first ones of an answer."""
        return max(round(self._mean) - tokens, tokens // 4, 1)
