"""Log probabilities as OpenAI's two formats show them."""

from collections.abc import Iterable

import msgspec

from pinyon.engine.events import PositionLogprobs, TokenLogprob

LEAST = -9999.0
"""Stands for the log of zero, which JSON cannot hold."""


class ShownLogprob(msgspec.Struct, frozen=True):
    """One likely token; `bytes` tells what it is when it is a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class PositionShown(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ShownLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[PositionShown]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """The format of /v1/completions: one entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


def _token(logprob: TokenLogprob) -> str:
    return logprob.raw.decode("utf-8", "replace")


def chat_logprobs(positions: Iterable[PositionLogprobs]) -> ChatLogprobs:
    def shown(entry: TokenLogprob) -> ShownLogprob:
        return ShownLogprob(_token(entry), max(entry.logprob, LEAST), list(entry.raw))

    content = []
    for position in positions:
        chosen = shown(position.chosen)
        content.append(PositionShown(chosen.token, chosen.logprob, chosen.bytes, [shown(top) for top in position.top]))
    return ChatLogprobs(content)


def text_logprobs(positions: Iterable[PositionLogprobs], offset: int, *, with_top: bool) -> TextLogprobs:
    """Return the lists of these positions; the text before them is `offset` characters long."""
    shown = TextLogprobs([], [], [] if with_top else None, [])
    for position in positions:
        token = _token(position.chosen)
        shown.tokens.append(token)
        shown.token_logprobs.append(max(position.chosen.logprob, LEAST))
        shown.text_offset.append(offset)
        if shown.top_logprobs is not None:
            likeliest: dict[str, float] = {}
            for top in position.top:  # parts of characters can look alike
                likeliest.setdefault(_token(top), max(top.logprob, LEAST))
            shown.top_logprobs.append(likeliest)
        offset += len(token)
    return shown
