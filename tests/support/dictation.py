"""Answers whose tokens are given, so that the logits of two ways to compute them can be compared at each position.

Logits depend on the shape of a batch. How much, a model tells itself: the same answers, computed alone and beside one another.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pinyon.engine.engine import Engine
from pinyon.engine.events import Failed
from pinyon.engine.native import Logits
from pinyon.engine.request import GenerateRequest

Seen: TypeAlias = dict[str, list[NDArray[np.float32]]]
"""For each request the logits that each of its tokens was chosen from, or every `every`th of them."""


class _Dictated:
    """In the place of a sequence's sampler: sees the logits, and chooses what it was told."""

    seed = 0

    def __init__(self, tokens: Sequence[int], seen: list[NDArray[np.float32]], every: int) -> None:
        self._tokens = iter(tokens)
        self._seen = seen
        self._every = every

    def choose(self, logits: Logits) -> int:
        self._seen.append(logits[:: self._every].copy())
        return next(self._tokens)

    def close(self) -> None:
        pass


class Dictation:
    """Has an engine answer requests with given tokens. `failed` lists what had no answer."""

    def __init__(self, engine: Engine, answers: Mapping[str, Sequence[int]], every: int = 1) -> None:
        self.failed: list[str] = []
        self._engine = engine
        self._answers = answers
        self._every = every

    def take(self, requests: Sequence[GenerateRequest]) -> Seen:
        """Answer requests all at once; return what was seen."""
        engine, seen = self._engine, Seen()
        for request in requests:
            seen[request.id] = []
            engine.submit(engine.prepare(request))
            for sequence in engine._answers[request.id].open:
                sequence._sampler = _Dictated(self._answers[request.id], seen[request.id], self._every)  # type: ignore[assignment]
        while engine.busy:
            self.failed += [name for name, event in engine.step() if isinstance(event, Failed)]
        return seen


def distances(one: Seen, other: Seen) -> NDArray[np.float32]:
    """Return how far the logits of each position of each of the `other` answers are from those of the same ones; NaN where one is."""
    pairs = [pair for name in other for pair in zip(one[name], other[name], strict=True)]
    return np.array([np.abs(logits - same).max() for logits, same in pairs])
