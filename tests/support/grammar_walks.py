"""A vocabulary of bytes for llguidance, and random answers that keep to a grammar: a model that knows nothing else."""

from collections.abc import Sequence

import numpy as np
from fakes import BOS, EOS, SPECIAL, ByteTable
from llguidance import LLTokenizer, TokenizerWrapper

from pinyon.engine.constraint import GrammarCompiler
from pinyon.engine.request import Grammar


class _ByteTokens:
    eos_token_id = EOS
    bos_token_id = BOS
    tokens = [bytes([byte]) for byte in range(256)] + [b"\xff" + text.encode() for text in SPECIAL.values()]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class ByteVocabulary:
    """The tokens of fakes.ByteTable."""

    size = ByteTable.size

    def llguidance_tokenizer(self, eog: Sequence[int]) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(_ByteTokens()), eos_token=list(eog))


EOG = [token for token in SPECIAL if ByteTable().is_eog(token)]
COMPILER = GrammarCompiler(ByteVocabulary(), EOG)


def _preferences(*weights: tuple[bytes, float]) -> np.ndarray:
    bonus = np.full(ByteTable.size, -2, np.float32)
    bonus[32:127] = 0
    for letters, weight in weights:
        bonus[list(letters)] = weight
    return bonus


_CONTENT = _preferences((b'"{[,:', 1.5), (b"0123456789ab-.", 1))
_CLOSING = _preferences((b'"}]', 6), (b",", -6))


def random_answer(grammar: Grammar, seed: int, max_tokens: int = 400) -> bytes | None:
    """Return a finished answer of random tokens, or None when it did not end within `max_tokens`."""
    rng = np.random.default_rng(seed)
    patience = rng.integers(1, 60)
    constraint = COMPILER.compile(grammar)
    answer = bytearray()
    for length in range(max_tokens):
        wanted = _CONTENT if length < patience else _CLOSING
        logits = rng.normal(size=ByteTable.size).astype(np.float32) + wanted
        logits[EOG] = 3
        token = int(constraint.mask(logits).argmax())
        constraint.accept(token)
        if token in EOG:
            return bytes(answer)
        assert token < 256, "a control token inside the text"
        answer.append(token)
        if constraint.is_complete:
            return bytes(answer)
    return None


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the grammar allows exactly this text as an answer."""
    constraint = COMPILER.compile(grammar)
    for byte in text.encode():
        if constraint.is_complete or np.isinf(constraint.mask(np.zeros(ByteTable.size, np.float32))[byte]):
            return False
        constraint.accept(byte)
    return constraint.is_complete or bool(np.isfinite(constraint.mask(np.zeros(ByteTable.size, np.float32))[EOS]))
