"""The figures of one answer: measured from its events while it streams, the engine's own once it has ended."""

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pinyon.app.counted import counted
from pinyon.app.tui import amounts
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.events import (
    Chunk,
    Event,
    Failed,
    Finished,
    Progress,
    Timings,
    Usage,
    prompt_tokens_per_s,
    rate,
    tokens_per_s,
)

SAMPLE_S: Final = 0.5
"""How much time one sample of the speed covers."""
SAMPLES: Final = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an answer so far; None is not known, or not yet.

    TTFT is the time to the first token, TPOT the time per output token after it. `speeds` are tokens per second in
    the last spans of SAMPLE_S, oldest first. `cache` and `drafts` come with the end of the answer.
    """

    ttft_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p95_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens_per_s: float | None = None
    completion_tokens: int = 0
    tokens_per_s: float | None = None
    speeds: tuple[float, ...] = ()
    cache: CacheReport | None = None
    drafts: DraftReport | None = None

    @classmethod
    def of(cls, usage: Usage, timings: Timings, cache: CacheReport, drafts: DraftReport | None = None) -> "Figures":
        """Return the figures of an answer that has ended, from what the engine told or the history kept."""
        return _ended(cls(), usage, timings, cache, drafts)


class AnswerMeter:
    """Takes the events of one answer as they come. Its time begins when it is made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at = clock()
        self._prompt = Progress(0, 0)
        self._accepted_at: float | None = None
        self._prompt_rate: float | None = None
        self._first_at: float | None = None
        self._last_at = 0.0
        self._tokens = 0
        self._gaps_s: list[float] = []  # sorted
        self._speeds: deque[float] = deque(maxlen=SAMPLES)
        self._sample_ends_at = 0.0
        self._sample_tokens = 0
        self._final: Figures | None = None

    def take(self, event: Event) -> None:
        """Take the next event; what follows the last one changes nothing."""
        if self._final is not None:
            return
        match event:
            case Progress():
                self._take_progress(event)
            case Chunk(token_ids=ids) if ids:
                self._take_tokens(len(ids))
            case Finished():
                self._final = _ended(self.figures(), event.usage, event.timings, event.cache, event.speculation)
            case Failed():
                self._final = self.figures()

    def figures(self) -> Figures:
        """Return the figures as of now; after the last event they stay as they are."""
        if self._final is not None:
            return self._final
        first_at = self._first_at
        return Figures(
            ttft_s=None if first_at is None else first_at - self._asked_at,
            tpot_p50_s=_percentile(self._gaps_s, 0.5),
            tpot_p95_s=_percentile(self._gaps_s, 0.95),
            prompt_tokens=self._prompt.total,
            cached_tokens=self._prompt.cached,
            prompt_tokens_per_s=self._prompt_rate,
            completion_tokens=self._tokens,
            tokens_per_s=None if first_at is None else rate(self._tokens - 1, self._last_at - first_at),
            speeds=tuple(self._speeds),
        )

    def _take_progress(self, progress: Progress) -> None:
        now = self._clock()
        if self._accepted_at is None:
            self._accepted_at = now
        self._prompt = progress
        self._prompt_rate = rate(progress.done - progress.cached, now - self._accepted_at)

    def _take_tokens(self, number: int) -> None:
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
            self._sample_ends_at = now + SAMPLE_S
        else:
            gap_s = (now - self._last_at) / number
            for _ in range(number):
                insort(self._gaps_s, gap_s)
            self._sample(now, number)
        self._last_at = now
        self._tokens += number

    def _sample(self, now: float, number: int) -> None:
        while now >= self._sample_ends_at:
            self._speeds.append(self._sample_tokens / SAMPLE_S)
            self._sample_tokens = 0
            self._sample_ends_at += SAMPLE_S
        self._sample_tokens += number


def footer(figures: Figures) -> str:
    """Return the line under an answer: always its speed, its TTFT and how much of its prompt was cached."""
    parts = (
        amounts.rate(figures.tokens_per_s),
        f"TTFT {amounts.seconds(figures.ttft_s)}",
        f"cached {cached(figures)}",
        counted(figures.completion_tokens, "token"),
        f"drafts {drafts}" if (drafts := drafted(figures)) else "",
    )
    return " · ".join(filter(None, parts))


def drafted(figures: Figures) -> str:
    """Return how many drafted tokens came true, in drafts of what length on average, and whose; nothing where there were none."""
    drafts = figures.drafts
    if drafts is None or not drafts.drafted:
        return ""
    depth = drafts.drafted / sum(steps for depth, steps in drafts.depths.items() if depth)
    return f"{drafts.accepted:,}/{drafts.drafted:,} ({drafts.drafter}, depth {depth:.1f})"


def cached(figures: Figures) -> str:
    """Return how many of the prompt's tokens were cached, and in which tiers where that is known."""
    text = f"{figures.cached_tokens:,}/{figures.prompt_tokens:,}"
    if (cache := figures.cache) is None:
        return text
    tiers = (("context", cache.resident), ("RAM", cache.ram), ("disk", cache.disk))
    named = ", ".join(f"{name} {tokens:,}" for name, tokens in tiers if tokens)
    return f"{text} ({named})" if named else text


def _ended(so_far: Figures, usage: Usage, timings: Timings, cache: CacheReport, drafts: DraftReport | None) -> Figures:
    return replace(
        so_far,
        ttft_s=timings.queue_s + timings.prefill_s if usage.completion_tokens else None,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        prompt_tokens_per_s=prompt_tokens_per_s(usage, timings),
        completion_tokens=usage.completion_tokens,
        tokens_per_s=tokens_per_s(usage, timings),
        cache=cache,
        drafts=drafts,
    )


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank)."""
    if not ordered:
        return None
    return ordered[math.ceil(share * len(ordered)) - 1]
