import pytest

from pinyon.app.tui.figures import SAMPLES, AnswerMeter, Figures, footer
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.events import Chunk, Failed, FailureKind, Finished, FinishReason, Progress, Timings, Usage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Answer:
    """An answer whose events come when the test says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.meter = AnswerMeter(self.clock)

    def take(self, at: float, event: Progress | Chunk | Finished | Failed) -> Figures:
        self.clock.now = 100.0 + at
        self.meter.take(event)
        return self.meter.figures()

    def tokens(self, at: float, number: int = 1) -> Figures:
        return self.take(at, Chunk(0, "x" * number, tuple(range(number))))


FINISHED = Finished(
    (FinishReason.STOP,),
    Usage(prompt_tokens=530, completion_tokens=101, cached_tokens=512),
    Timings(queue_s=0.1, prefill_s=0.3, decode_s=2.5),
    seed=7,
    cache=CacheReport(resident=480, disk=32),
)


def test_nothing_is_known_before_the_first_event() -> None:
    assert Answer().meter.figures() == Figures()


def test_prompt_speed_leaves_out_what_was_cached() -> None:
    answer = Answer()
    answer.take(1.0, Progress(0, 500))
    figures = answer.take(1.5, Progress(300, 500, cached=200))
    assert (figures.prompt_tokens, figures.cached_tokens, figures.prompt_tokens_per_s) == (500, 200, 200.0)


def test_ttft_counts_from_the_ask_to_the_first_token() -> None:
    answer = Answer()
    answer.take(0.5, Progress(0, 5))
    assert answer.take(0.7, Chunk(0, "text without a token")).ttft_s is None
    assert answer.tokens(0.75).ttft_s == 0.75
    assert answer.tokens(2.0).ttft_s == 0.75


def test_time_per_token_as_percentiles_of_the_gaps() -> None:
    answer = Answer()
    at = 0.0
    answer.tokens(at)
    for gap in [0.25] * 19 + [4.0]:
        at += gap
        figures = answer.tokens(at)
    assert (figures.tpot_p50_s, figures.tpot_p95_s) == (0.25, 0.25)
    figures = answer.tokens(at + 4.0)
    assert (figures.tpot_p50_s, figures.tpot_p95_s) == (0.25, 4.0)


def test_tokens_that_come_together_share_their_gap() -> None:
    answer = Answer()
    answer.tokens(0.0)
    figures = answer.tokens(1.0, number=4)
    assert (figures.tpot_p50_s, figures.tpot_p95_s, figures.completion_tokens, figures.tokens_per_s) == (
        0.25,
        0.25,
        5,
        4.0,
    )


def test_speeds_are_sampled_with_stalls_as_zeros() -> None:
    answer = Answer()
    for at in (0.0, 0.125, 0.25):
        answer.tokens(at)
    assert answer.meter.figures().speeds == ()
    assert answer.tokens(1.75).speeds == (4.0, 0.0, 0.0)  # the first token ends the prefill: it took no time of its own
    for step in range(1, 100):
        figures = answer.tokens(1.75 + step * 0.5)
    assert figures.speeds == (2.0,) * SAMPLES


def test_the_end_brings_the_engines_own_figures_and_freezes_them() -> None:
    answer = Answer()
    answer.take(0.0, Progress(0, 530))
    answer.tokens(1.0)
    answer.tokens(1.5)
    end = answer.take(9.0, FINISHED)
    assert (end.ttft_s, end.prompt_tokens_per_s, end.tokens_per_s) == (0.4, pytest.approx(60.0), 40.0)
    assert (end.completion_tokens, end.tpot_p50_s, end.cache) == (101, 0.5, FINISHED.cache)
    assert answer.tokens(10.0) == end


def test_a_failure_freezes_what_was_measured() -> None:
    answer = Answer()
    before = answer.tokens(1.0)
    assert answer.take(2.0, Failed(FailureKind.ENGINE_CRASH, "died")) == before
    assert answer.tokens(3.0) == before


def test_figures_of_a_kept_answer_are_those_of_its_end() -> None:
    kept = Figures.of(FINISHED.usage, FINISHED.timings, FINISHED.cache)
    assert footer(kept) == "40.0 tok/s · TTFT 0.40 s · cached 512/530 (context 480, disk 32) · 101 tokens"


def test_the_footer_tells_what_came_of_drafts() -> None:
    drafts = DraftReport("suffix", 40, 70, 60, 30, {0: 20, 2: 10, 4: 10})
    figures = Figures.of(FINISHED.usage, FINISHED.timings, FINISHED.cache, drafts)
    assert footer(figures).endswith("101 tokens · drafts 30/60 (suffix, depth 3.0)")


def test_footer_of_an_answer_of_one_token_or_none() -> None:
    one = Figures.of(Usage(9, 1), Timings(0, 0.0625, 0), CacheReport())
    assert footer(one) == "- tok/s · TTFT 62 ms · cached 0/9 · 1 token"
    assert footer(Figures()) == "- tok/s · TTFT - · cached 0/0 · 0 tokens"
