"""The tokens of answers, so that a history which comes back as text gets the tokens that were computed, not others of that text.

Tokenizers cut text at control tokens before they merge anything. So what stands between two of them can be replaced as a
whole: an answer is remembered with all that its last control token was followed by, by the text of that.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

MAX_ANSWERS: Final = 10_000
MAX_TOKENS: Final = 1_000_000
"""Of all answers together; they take about 36 bytes each."""
MAX_HEADING_TOKENS: Final = 32
"""What may stand between a prompt's last control token and the answer: a role's name, an opened thought."""
_KEY_BYTES: Final = 16


class Spelling(NamedTuple):
    """The key of a text, and the tokens that it had."""

    key: bytes
    tokens: tuple[int, ...]


class AnswerMemory:
    """`bytes_of` gives a token's text, `is_control` tells what cuts text. Any thread may look up; one remembers."""

    def __init__(self, bytes_of: Callable[[int], bytes], is_control: Callable[[int], bool]) -> None:
        self._bytes_of = bytes_of
        self._is_control = is_control
        self._answers: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._tokens = 0

    def remember(self, namespace: str, tokens: Sequence[int], prompt_tokens: int) -> list[Spelling]:
        """Remember the answer that follows the prompt in `tokens`, and return that; also without the white space at its end,
        which templates cut off. What goes on with a text of the prompt is no answer.
        """
        span = tuple(takewhile(lambda token: not self._is_control(token), reversed(tokens)))[::-1]
        answer_tokens = len(tokens) - prompt_tokens
        if not 0 < answer_tokens >= len(span) - MAX_HEADING_TOKENS:
            return []
        pieces = [self._bytes_of(token) for token in span]
        text = b"".join(pieces)
        while pieces and not pieces[-1].strip():
            pieces.pop()
        spellings = [Spelling(_key(namespace, text), span)]
        if len(pieces) < len(span) and b"".join(pieces) == text.rstrip():
            spellings.append(Spelling(_key(namespace, text.rstrip()), span[: len(pieces)]))
        self.restore(spellings)
        return spellings

    def find(self, namespace: str, text: bytes) -> tuple[int, ...] | None:
        """Return the tokens that this text had; None if it is no answer, or was remembered wrongly: notes have no checksum."""
        tokens = self._answers.get(_key(namespace, text))
        if tokens is None or any(map(self._is_control, tokens)) or b"".join(map(self._bytes_of, tokens)) != text:
            return None
        return tokens

    def restore(self, spellings: Iterable[Spelling]) -> None:
        """Remember what was remembered before; its tokens are of this vocabulary."""
        for key, tokens in spellings:
            self._tokens += len(tokens) - len(self._answers.pop(key, ()))
            self._answers[key] = tokens
        while len(self._answers) > MAX_ANSWERS or self._tokens > MAX_TOKENS:
            self._tokens -= len(self._answers.popitem(last=False)[1])


def _key(namespace: str, text: bytes) -> bytes:
    return hashlib.sha256(namespace.encode() + b"\0" + text).digest()[:_KEY_BYTES]
