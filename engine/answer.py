"""The choices of one request, and the event that ends it."""

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from pinyon.engine.draft_report import draft_report
from pinyon.engine.events import Finished, FinishReason, Timings, Usage
from pinyon.engine.request import SEED_LIMIT, GenerateRequest, SamplingParams
from pinyon.engine.sampler import drawn_seed
from pinyon.engine.sequence import Sequence as Choice


def choice_sampling(request: GenerateRequest) -> Iterator[SamplingParams]:
    """Yield the sampling of each choice: seeds that follow one another, from the request's or from a drawn one."""
    seed = request.sampling.seed
    first = drawn_seed() if seed is None else seed
    for index in range(request.n):
        yield msgspec.structs.replace(request.sampling, seed=(first + index) % (SEED_LIMIT - 1))


class Answer:
    """All choices of a request that came at a time by the engine's clock; each goes its own way to its end."""

    def __init__(self, choices: Sequence[Choice], came_at: float) -> None:
        self._choices = choices
        self.came_at = came_at
        self.expected_at = 0.0
        """By the same clock: when its first token was expected, as predicted when it was accepted."""

    @property
    def open(self) -> list[Choice]:
        """The choices that go on."""
        return [choice for choice in self._choices if not choice.done]

    def finished(self, why_no_drafts: str = "") -> Finished:
        """Return the last event, when every choice has finished."""
        choices = self._choices
        usage = Usage(
            choices[0].prompt_tokens,
            sum(choice.completion_tokens for choice in choices),
            sum(choice.reasoning_tokens for choice in choices),
            choices[0].cached_tokens,
        )
        reasons = tuple(cast("FinishReason", choice.reason) for choice in choices)
        drafts = draft_report([choice.drafting for choice in choices], why_no_drafts)
        return Finished(reasons, usage, self._timings(), choices[0].seed, choices[0].cache_report(), drafts)

    def _timings(self) -> Timings:
        end = max(choice.ended or 0.0 for choice in self._choices)
        admitted = min(choice.admitted or end for choice in self._choices)
        first = min(choice.first_token or end for choice in self._choices)
        return Timings(admitted - self._choices[0].created, first - admitted, end - first)
