"""Applies a request's grammar to its answer, and to nothing that the model thinks before it."""

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from pinyon.engine.native import Logits
from pinyon.engine.text_stream import TextStream


class Constraint(Protocol):
    """The state of a grammar in one answer; constraint.Constraint is one, and so are fakes in tests."""

    @property
    def is_complete(self) -> bool: ...
    def mask(self, logits: Logits, extra: Sequence[int] = ()) -> Logits: ...
    def accept(self, token: int) -> None: ...
    def accept_text(self, data: bytes) -> None: ...
    def copy(self) -> Self: ...
    def close(self) -> None: ...


class Gate:
    """Owns the grammar's state. `opening` are the tokens of the tag with which thoughts may begin, none where they may not.

    Until the answer begins, the model may open a block of thoughts instead; a tag that it has begun, it has to finish. Thoughts
    do not end with a token of `eog`: the answer would be missing.
    """

    def __init__(self, constraint: Constraint, text: TextStream, opening: Sequence[int], eog: Sequence[int]) -> None:
        self._constraint = constraint
        self._text = text
        self._opening = opening
        self._eog = list(eog)
        self._tag_tokens = 0
        self._was_thinking = text.in_reasoning

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""
        return not self._text.in_reasoning and self._constraint.is_complete

    def allowed(self, logits: Logits) -> Logits:
        """Return logits in which what is forbidden now is -inf."""
        if self._text.in_reasoning:
            endless = logits.copy()
            endless[self._eog] -= np.inf  # a NaN stays one
            return endless
        if 0 < self._tag_tokens < len(self._opening):
            forced = np.full_like(logits, -np.inf)
            forced[self._opening[self._tag_tokens]] = 0
            return forced
        return self._constraint.mask(logits, self._opening[:1])

    def take(self, token: int) -> None:
        """Take note of the token that was chosen, which the text stream has already.

        Raises:
            NativeError: thoughts ended in the middle of a token, and its rest does not fit the grammar.
            InvalidRequestError: the grammar cannot be followed further.
        """
        if self._opening[self._tag_tokens : self._tag_tokens + 1] == [token]:
            self._tag_tokens += 1
        elif not self._text.in_reasoning:
            self._opening = []
            rest = self._text.begin_answer()
            if not self._was_thinking:
                self._constraint.accept(token)
            elif rest:
                self._constraint.accept_text(rest)
        self._was_thinking = self._text.in_reasoning

    def close(self) -> None:
        self._constraint.close()
