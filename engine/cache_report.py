"""What an answer says about the cache: how much of its prompt was there, where, and why not more."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

SHOWN_TOKENS: Final = 12
COMPARED_TOKENS: Final = 256
"""How far two texts that part are looked at."""


class Miss(StrEnum):
    """Why the first token of the prompt that was computed had not been kept."""

    NEW = "new"
    DIVERGED = "diverged"
    RETOKENISED = "retokenised"
    HISTORY_CHANGED = "history_changed"
    OTHER_MODEL_OR_SETTINGS = "other_model_or_settings"
    EVICTED = "evicted"
    NOT_WORTH_IT = "not_worth_it"
    NO_ROOM = "no_room"
    UNREADABLE = "unreadable"
    NOT_READY = "not_ready"
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
        """Return the gap before `position` of the tokens, where `known` is how something known goes on: there is some."""
        got = tuple(tokens[position : position + COMPARED_TOKENS])
        if known[0] == got[0]:  # it is known, and cannot be gone on from
            return cls(Miss.UNAVAILABLE, position)
        return cls(Miss.DIVERGED, position, tuple(known[:COMPARED_TOKENS]), got)


class CacheReport(msgspec.Struct, frozen=True):
    """Tokens of a prompt whose KV was there already: in the context (`resident`), or in blocks in RAM or on disk.

    `miss` says why there are not more; None where only the prompt's last token was computed, which always is. If another
    text is known from `position` on, `expected` is how it goes on, and `got` how the prompt does. `advice` is for the
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
