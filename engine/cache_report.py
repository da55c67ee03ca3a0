"""What an answer says about the cache: how much of its prompt was there, where, and why not more."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

SHOWN_TOKENS: Final = 12


class Miss(StrEnum):
    """Why the first token of the prompt that was computed had not been kept."""

    NEW = "new"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    NOT_WORTH_IT = "not_worth_it"
    UNREADABLE = "unreadable"
    DISABLED = "disabled"
    UNAVAILABLE = "unavailable"


class Gap(NamedTuple):
    """Where the known part of a prompt ends: another text was `expected` there, if any was; the prompt goes on with `got`."""

    miss: Miss
    position: int
    expected: tuple[int, ...] = ()
    got: tuple[int, ...] = ()

    @classmethod
    def between(cls, known: Sequence[int], tokens: Sequence[int], position: int) -> "Gap":
        """Return the gap before `position` of the tokens, where what was known goes on otherwise."""
        return cls(
            Miss.DIVERGED, position, tuple(known[:SHOWN_TOKENS]), tuple(tokens[position : position + SHOWN_TOKENS])
        )


class CacheReport(msgspec.Struct, frozen=True):
    """Tokens of a prompt whose KV was there already: in the context (`resident`), or in blocks in RAM or on disk.

    `miss` says why there are not more; None where only the prompt's last token was computed, which always is. If it diverged
    at `position`, `expected` is how a known text goes on from there, and `got` how the prompt does. `advice` is for the
    prompt's author.
    """

    resident: int = 0
    ram: int = 0
    disk: int = 0
    miss: Miss | None = None
    position: int = 0
    expected: str = ""
    got: str = ""
    advice: str = ""

    @property
    def cached(self) -> int:
        return self.resident + self.ram + self.disk


_EARLY: Final = 0.5
"""The part of a prompt in which a difference costs most of the cache."""


def advice(prompt_tokens: int, position: int, expected: str, got: str) -> str:
    """Return what would have let more of a prompt be reused that diverges somewhere, where that is easy."""
    if position > _EARLY * prompt_tokens:
        return ""
    if re.search(r"\d", expected) and re.search(r"\d", got):
        return "a date, time or number near the start changes with every request: put what changes at the end"
    return "the start differs from last time: keep instructions, tools and history in the same order and words"
