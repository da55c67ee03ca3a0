"""How predictions learn from reality; what is made of them stands in test_under_load."""

import random

import pytest

from pinyon.engine.admission import LATE_SHARE, Prudence


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def learned(clock, ratios, every_s=2.0):
    """Take first tokens that came after so many times the predicted seconds; return how many were later than was said."""
    prudence, late = Prudence(clock), 0
    for ratio in ratios:
        clock.now_s += every_s
        was_late = ratio > prudence.factor
        late += was_late
        prudence.take(was_late=was_late)
    return prudence, late


def test_about_as_many_come_later_than_was_said_as_may():
    dice = random.Random(1)
    ratios = [dice.lognormvariate(0, 0.3) for _ in range(20_000)]
    prudence, late = learned(Clock(), ratios)
    assert late <= 2.5 * LATE_SHARE * len(ratios), "it fades meanwhile"
    assert 1.3 < prudence.factor < 2.5


def test_a_bad_moment_counts_once():
    clock = Clock()
    once, _ = learned(clock, [100.0])
    often, _ = learned(Clock(), [100.0] * 50, every_s=0.01)
    assert often.factor == pytest.approx(once.factor, rel=0.02)


def test_there_is_a_limit_and_with_time_it_fades():
    clock = Clock()
    prudence, _ = learned(clock, [100.0] * 100)
    worst = prudence.factor
    assert 3.5 < worst <= 4
    clock.now_s += 900
    assert 1.5 < prudence.factor < 1.8
    clock.now_s += 9000
    assert prudence.factor == pytest.approx(1, abs=0.01)


def test_predictions_are_never_made_shorter():
    prudence, _ = learned(Clock(), [0.1] * 1000)
    assert prudence.factor == 1
