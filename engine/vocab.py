"""Text to tokens and back. What is text and what is control is decided here, and nowhere else."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Protocol, TypeAlias

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.native import SpecialTokens
from pinyon.engine.request import Reasoning, Text, Tokens


class TokenTable(Protocol):
    """What a vocabulary must offer; native.Vocabulary does, and small fakes in tests do."""

    size: int
    adds_bos: bool
    bos: int | None

    def is_eog(self, token: int) -> bool: ...
    def special_tokens(self) -> SpecialTokens: ...
    def text(self, token: int) -> bytes: ...
    def piece(self, token: int) -> bytes: ...
    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]: ...


Known: TypeAlias = Callable[[bytes], Sequence[int] | None]

_TAG = re.compile(r"[<\[]\S+[>\]]")


class Vocab:
    """One model's vocabulary. Encoding may run in any thread."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._bytes: dict[int, bytes] = {}
        self._tag_bytes: dict[Reasoning, dict[int, bytes]] = {}

    @property
    def size(self) -> int:
        return self._table.size

    @cached_property
    def _special(self) -> SpecialTokens:
        return self._table.special_tokens()

    @cached_property
    def control_strings(self) -> tuple[str, ...]:
        """Texts that parsing special tokens turns into control tokens."""
        return self._texts(self._special.control)

    @cached_property
    def tag_strings(self) -> tuple[str, ...]:
        """Texts of user-defined tokens that look like tags: a template may give such a tag a meaning."""
        return tuple(text for text in self._texts(self._special.user_defined) if _TAG.fullmatch(text))

    @cached_property
    def eog_strings(self) -> tuple[str, ...]:
        """Texts of the tokens that end generation."""
        return self._texts(self.eog_tokens)

    @cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """The tokens that end generation."""
        return tuple(token for token in self._special.control if self._table.is_eog(token))

    def _texts(self, tokens: Iterable[int]) -> tuple[str, ...]:
        texts = (self._table.text(token).decode("utf-8", "replace") for token in tokens)
        return tuple(sorted({text for text in texts if text}))

    def token_text(self, token: int | None) -> str:
        """Return a token's own text, also a control token's; empty for None."""
        return "" if token is None else self._table.text(token).decode("utf-8", "replace")

    def has(self, tokens: Sequence[int]) -> bool:
        """Whether all are tokens of this vocabulary; native code aborts at others."""
        return not tokens or 0 <= min(tokens) <= max(tokens) < self.size

    def is_eog(self, token: int) -> bool:
        return self._table.is_eog(token)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to visible text; none for control tokens."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._table.piece(token)
        return known

    def tag_bytes(self, tags: Reasoning | None) -> dict[int, bytes]:
        """Return the texts of the control tokens with which the tags are spelled; such tokens are invisible elsewhere."""
        if tags is None:
            return {}
        known = self._tag_bytes.get(tags)
        if known is None:  # a walk through all control tokens: once for a model's tags, not for each answer
            known = self._tag_bytes[tags] = self._spelling(tags)
        return known

    def _spelling(self, tags: Reasoning) -> dict[int, bytes]:
        spelled = "\0".join((tags.start, *tags.ends))
        texts = ((token, self._table.text(token)) for token in self._special.control)
        return {token: text for token, text in texts if text and text.decode("utf-8", "replace") in spelled}

    def opening(self, tags: Reasoning | None) -> list[int]:
        """Return the tokens of the start tag where it begins with one of its own; none where a block is open, or plain text."""
        if tags is None or tags.opened:
            return []
        tokens = self._tokenize(tags.start, parse_special=True)
        return tokens if {*tokens[:1]} & {*self._special.control, *self._special.user_defined} else []

    def least_tokens(self, prompt: Sequence[Text | Tokens]) -> int:
        """Return a number of tokens that the prompt has at least, without tokenising it."""
        return sum(
            len(piece.ids)
            if isinstance(piece, Tokens)
            else len(piece.text.encode("utf-8", "replace")) // self._longest_token_bytes
            for piece in prompt
        )

    @cached_property
    def _longest_token_bytes(self) -> int:
        return max(len(self._table.text(token)) for token in range(self.size))

    def encode(self, prompt: Sequence[Text | Tokens], known: Known = lambda _text: None) -> list[int]:
        """Return the prompt's tokens, beginning with exactly one BOS where the model wants one.

        `known` is asked for the tokens of whatever text stands between two control tokens; None leaves it to the tokenizer.
        """
        tokens: list[int] = []
        for piece in prompt:
            tokens += piece.ids if isinstance(piece, Tokens) else self._encode_text(piece, known)
        bos = self._table.bos
        if self._table.adds_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _encode_text(self, piece: Text, known: Known) -> list[int]:
        if piece.special:
            return self._encode_special(piece.text, known)
        if piece.text not in self.tag_strings:
            return self._tokenize(piece.text, parse_special=False)
        # User-defined tokens are matched in plain text as well; cut in two, the tag stays text.
        head, tail = piece.text[:1], piece.text[1:]
        return self._tokenize(head, parse_special=False) + self._tokenize(tail, parse_special=False)

    def _encode_special(self, text: str, known: Known) -> list[int]:
        tokens: list[int] = []
        rest = 0
        controls = [match.span() for match in self._control_pattern.finditer(text)]
        for (_, start), (end, _) in pairwise(controls):
            if start < end and (spelling := known(text[start:end].encode("utf-8", "replace"))) is not None:
                tokens += [*self._tokenize(text[rest:start], parse_special=True), *spelling]
                rest = end
        return tokens + self._tokenize(text[rest:], parse_special=True)

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.control_strings, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def is_control(self, token: int) -> bool:
        """Whether text is cut at the token before anything is merged."""
        return token in self._control_tokens

    @cached_property
    def _control_tokens(self) -> frozenset[int]:
        return frozenset(self._special.control)

    def _tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        return self._table.tokenize(text.encode("utf-8", "replace"), parse_special=parse_special) if text else []

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the visible text of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidRequestError: an id is outside the vocabulary, where native code would abort.
        """
        if unknown := [token for token in tokens if not 0 <= token < self.size]:
            raise InvalidRequestError(f"token id {unknown[0]} is outside the vocabulary: use 0 to {self.size - 1}")
        return b"".join(self.token_bytes(token) for token in tokens).decode("utf-8", "replace")

    def shown(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens for people to read, control tokens by their names."""
        return b"".join(self.token_bytes(token) or self._table.text(token) for token in tokens).decode(
            "utf-8", "replace"
        )
