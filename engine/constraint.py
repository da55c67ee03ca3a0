"""Holds an answer to its grammar, token by token. Lives in the worker; llguidance is imported with the first grammar."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pinyon.engine.errors import InvalidRequestError, NativeError
from pinyon.engine.native import Logits
from pinyon.engine.request import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class TokenizerSource(Protocol):
    """What a vocabulary must offer; native.Vocabulary does, and small fakes in tests do."""

    size: int

    def llguidance_tokenizer(self, eog: Sequence[int]) -> "LLTokenizer": ...


class GrammarCompiler:
    """Compiles grammars for one vocabulary. `eog` are the tokens with which an answer may end.

    Compiling may run beside the masks of earlier constraints, in another thread; masks are computed in one thread.
    """

    def __init__(self, vocabulary: TokenizerSource, eog: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._eog = tuple(eog)

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        return self._vocabulary.llguidance_tokenizer(self._eog)

    @cached_property
    def _workspace(self) -> "_Workspace":
        return _Workspace(self._vocabulary.size)

    def compile(self, grammar: Grammar) -> "Constraint":
        """Return a grammar's state at the beginning of an answer. The first call takes 0.2 s for 50,000 tokens.

        Raises:
            InvalidRequestError: llguidance refuses the grammar.
        """
        from pinyon.engine.grammar_matcher import start_matcher  # noqa: PLC0415  a worker without grammars does not pay

        return Constraint(start_matcher(self._tokenizer, grammar.source), self._tokenizer, self._workspace)


_BITS_OF_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_PENALTIES = np.where(_BITS_OF_BYTES, np.float32(0), np.float32(-np.inf))
"""What a byte of a bit mask adds to its eight logits."""


class _Workspace:
    """Memory for one mask, shared by the constraints of one thread."""

    def __init__(self, vocabulary_size: int) -> None:
        self._bits = np.zeros(-(-vocabulary_size // 32) * 4, np.uint8)
        self._address = self._bits.ctypes.data
        self._penalties = np.empty((len(self._bits), 8), np.float32)
        self._flat_penalties = self._penalties.reshape(-1)[:vocabulary_size]
        self._masked = np.empty(vocabulary_size, np.float32)

    def mask(self, matcher: "LLMatcher", logits: Logits) -> Logits:
        """Return the logits with -inf where the matcher allows nothing; a NaN stays one."""
        matcher.unsafe_compute_mask_ptr(self._address, self._bits.nbytes)
        # A look-up and a sum take 0.03 ms for 49,000 tokens whatever the mask; copies under a mask take up to 0.3 ms.
        np.take(_PENALTIES, self._bits, axis=0, out=self._penalties, mode="clip")
        return np.add(logits, self._flat_penalties, out=self._masked)


_FAULTS = ("doesn't satisfy the grammar", "panic")
"""Words of llguidance's errors that no client's grammar is to blame for; all others tell of its limits."""


class Constraint:
    """One answer's place in its grammar."""

    def __init__(self, matcher: "LLMatcher", tokenizer: "LLTokenizer", workspace: _Workspace) -> None:
        self._open_matcher: LLMatcher | None = matcher
        self._tokenizer = tokenizer
        self._workspace = workspace

    @property
    def _matcher(self) -> "LLMatcher":
        if self._open_matcher is None:
            raise NativeError("the grammar's state was closed")
        return self._open_matcher

    def mask(self, logits: Logits, extra: Sequence[int] = ()) -> Logits:
        """Return the logits, shape (vocabulary,), with -inf for what must not come next; `extra` tokens stay.

        Where the answer may end, so may every token that ends it. The result is valid until the next call for any
        constraint of the compiler.

        Raises:
            InvalidRequestError: no token can follow, or llguidance reached one of its limits.
        """
        masked = self._workspace.mask(self._matcher, logits)
        self._check()
        for token in extra:
            masked[token] = logits[token]
        return masked

    def accept(self, token: int) -> None:
        """Go on with a token that was chosen.

        Raises:
            NativeError: the grammar does not allow it.
            InvalidRequestError: llguidance reached one of its limits.
        """
        self._matcher.consume_token(token)
        self._check()

    def accept_text(self, data: bytes) -> None:
        """Go on with bytes of the answer that came in a token with other text. Raises as `accept` does."""
        self._matcher.consume_tokens(self._tokenizer.tokenize_bytes(data))
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def copy(self) -> "Constraint":
        """Return a state at the same place, to go on from there by itself: much cheaper than compiling again."""
        return Constraint(self._matcher.deep_copy(), self._tokenizer, self._workspace)

    def close(self) -> None:
        self._open_matcher = None

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        reason = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
        if any(words in reason for words in _FAULTS):
            raise NativeError(f"the answer cannot follow its grammar any more: {reason}")
        if reason.startswith("NoExtension"):
            raise InvalidRequestError(
                "the answer has reached a place from where its grammar cannot be completed: correct the grammar",
                "grammar",
            )
        raise InvalidRequestError(
            f"the answer has reached a place where its grammar is too complex: simplify the grammar ({reason})",
            "grammar",
        )
