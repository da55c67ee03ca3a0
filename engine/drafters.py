"""Where drafted tokens come from."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from pinyon.engine.acceptance import Acceptance
from pinyon.engine.recent_answers import RecentAnswers
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.step_cost import Floats
from pinyon.engine.suffix_index import Place, SuffixIndex


class Proposal(NamedTuple):
    """What may follow: `chances` are those of each of the tokens, that it and all before it come true."""

    tokens: Sequence[int]
    chances: Floats


NOTHING: Final = Proposal((), np.zeros(0))


class Drafter(Protocol):
    """Guesses how answers go on. What it keeps of an answer that goes on ends with that."""

    name: str

    def propose(self, sequence: Choice, limit: int) -> Proposal:
        """Return up to so many tokens that may follow those of an answer."""

    def took(self, sequence: Choice, tokens: Sequence[int]) -> None:
        """Learn from the tokens that did follow what was proposed last."""

    def ended(self, sequence: Choice) -> None:
        """Keep what an answer that has ended is of use for."""

    def forget(self) -> None:
        """Keep nothing of what was asked and answered."""


@dataclass(slots=True)
class _Source:
    """A text in which the ends of answers are looked for, and how often what follows there comes true."""

    index: SuffixIndex
    acceptance: Acceptance
    is_own: bool

    def find(self, sequence: Choice) -> Place | None:
        return self.index.find() if self.is_own else self.index.find(sequence.tokens)


class _Found(NamedTuple):
    """The last proposal for an answer, and where it was found."""

    source: _Source
    place: Place
    tokens: Sequence[int]


@dataclass(slots=True)
class _Known:
    """Of one answer."""

    sources: list[_Source]
    found: _Found | None = None


class SuffixDrafter:
    """Proposes what followed where an answer's last tokens stood before: in its own text, prompt included, or in what its client was
    answered lately. Costs microseconds.

    It learns from every token, drafted or not: a proposal that was not worth a row is compared with what came all the same.
    """

    name = "suffix"

    def __init__(self) -> None:
        self._own, self._others = Acceptance(), Acceptance()
        self._known: WeakKeyDictionary[Choice, _Known] = WeakKeyDictionary()
        self._lately = RecentAnswers()

    def propose(self, sequence: Choice, limit: int) -> Proposal:
        """As Drafter.propose."""
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = _Known(self._sources(sequence))
        found = [(place, source) for source in known.sources if (place := source.find(sequence)) is not None]
        place, source = max(found, key=lambda each: each[0].length, default=(None, None))  # its own, of equals
        if place is None or source is None:
            known.found = None
            return NOTHING
        tokens = source.index.following(place, limit)
        known.found = _Found(source, place, tokens)
        return Proposal(tokens, source.acceptance.chances(place.length, len(tokens)))

    def _sources(self, sequence: Choice) -> list[_Source]:
        own = _Source(SuffixIndex(sequence.tokens), Acceptance(self._own), is_own=True)
        lately = self._lately.of(_client(sequence)) if sequence.request.use_cache else None
        return [own] if lately is None else [own, _Source(lately, Acceptance(self._others), is_own=False)]

    def took(self, sequence: Choice, tokens: Sequence[int]) -> None:
        """As Drafter.took."""
        if (found := self._known[sequence].found) is None:
            return
        for at, (proposed, token) in enumerate(zip(found.tokens, tokens, strict=False)):
            found.source.acceptance.take(found.place.length + at, came_true=proposed == token)
            if proposed != token:
                return

    def ended(self, sequence: Choice) -> None:
        """As Drafter.ended."""
        request = sequence.request
        if request.use_cache and not request.private and not request.deterministic:
            self._lately.add(_client(sequence), sequence.tokens[sequence.prompt_tokens :])

    def forget(self) -> None:
        """As Drafter.forget."""
        self._lately.clear()
        self._known.clear()  # whoever goes on looks at its own text from now on


def _client(sequence: Choice) -> Hashable:
    return sequence.request.namespace, sequence.request.client
