"""The tokens of answers, so that a history which comes back as text gets the tokens that were computed, not others of that text.

Tokenizers cut text at control tokens before they merge anything. So what stands between two of them can be replaced as a
whole: an answer is remembered with all that its last control token was followed by, by the text of that.
"""

import hashlib
import time
from collections import OrderedDict, defaultdict
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
    """The key of a text, the tokens that it had, and when, in seconds since 1970."""

    key: bytes
    tokens: tuple[int, ...]
    time_s: float


class AnswerMemory:
    """`bytes_of` gives a token's text, `is_control` tells what cuts text. Any thread may look up; one remembers."""

    def __init__(self, bytes_of: Callable[[int], bytes], is_control: Callable[[int], bool]) -> None:
        self._bytes_of = bytes_of
        self._is_control = is_control
        self._answers: OrderedDict[bytes, Spelling] = OrderedDict()
        self._conversations: defaultdict[bytes, set[str]] = defaultdict(set)
        self._tokens = 0

    def remember(
        self, namespace: str, tokens: Sequence[int], prompt_tokens: int, conversation: str | None = None
    ) -> list[Spelling]:
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
        now = time.time()
        spellings = [Spelling(_key(namespace, text), span, now)]
        if len(pieces) < len(span) and b"".join(pieces) == text.rstrip():
            spellings.append(Spelling(_key(namespace, text.rstrip()), span[: len(pieces)], now))
        self.restore(spellings, [(conversation, each.key) for each in spellings] if conversation is not None else ())
        return spellings

    def find(self, namespace: str, text: bytes) -> tuple[int, ...] | None:
        """Return the tokens that this text had; None if it is no answer, or was remembered wrongly: notes have no checksum."""
        known = self._answers.get(_key(namespace, text))
        if known is None or any(map(self._is_control, known.tokens)):
            return None
        return known.tokens if b"".join(map(self._bytes_of, known.tokens)) == text else None

    def restore(self, spellings: Iterable[Spelling], noted: Iterable[tuple[str, bytes]] = ()) -> None:
        """Remember what was remembered before; its tokens are of this vocabulary. `noted` are conversations with keys, perhaps
        of answers.
        """
        for spelling in spellings:
            if (known := self._answers.pop(spelling.key, None)) is not None:
                self._tokens -= len(known.tokens)
            self._answers[spelling.key] = spelling
            self._tokens += len(spelling.tokens)
        for conversation, key in noted:
            if key in self._answers:
                self._conversations[key].add(conversation)
        while len(self._answers) > MAX_ANSWERS or self._tokens > MAX_TOKENS:
            self._forget(next(iter(self._answers)))

    def forget(self, conversation: str) -> None:
        """Forget the answers that were given in this conversation alone."""
        for key, conversations in [*self._conversations.items()]:
            if conversations == {conversation}:
                self._forget(key)
            conversations.discard(conversation)

    def forget_before(self, time_s: float) -> None:
        """Forget the answers that were given before a time, in seconds since 1970."""
        for key in [key for key, each in self._answers.items() if each.time_s < time_s]:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        self._tokens -= len(self._answers.pop(key).tokens)
        self._conversations.pop(key, None)


def _key(namespace: str, text: bytes) -> bytes:
    return hashlib.sha256(namespace.encode() + b"\0" + text).digest()[:_KEY_BYTES]
