import numpy as np
import pytest

from pinyon.engine.step_cost import LONGEST_S, StepCost
from pinyon.engine.step_curve import ROWS, Curve

MACHINES = {
    "measured": ([1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512], [17, 40, 48, 51, 72, 65, 80, 84, 120, 218, 408, 1618]),
    "quick": ([1, 8, 64, 512], [0.5, 0.8, 3.0, 20.0]),
    "slow": ([1, 8, 64, 512], [400, 900, 4000, 30000]),
}
"""Milliseconds by rows. The first is Qwen2.5-Coder-0.5B on two cores."""


class Machine:
    """What steps really take: noise of `spread`, now and then ten times as long, and all of it `pace` times as slow."""

    def __init__(self, name, spread=0.05, outliers=0.0):
        self._rows, self._ms = MACHINES[name]
        self._random = np.random.default_rng(7)
        self._spread, self._outliers = spread, outliers
        self.pace = 1.0

    def true_s(self, rows, span):
        base_s = np.interp(rows, self._rows, self._ms) / 1000
        per_cell = self._ms[-1] / self._rows[-1] / 1000 / 3500
        return self.pace * (base_s + (2 if rows < 64 else 1) * per_cell * rows * span)

    def step_s(self, rows, span):
        odd = 10 if self._random.random() < self._outliers else 1
        return self.true_s(rows, span) * self._random.lognormal(0, self._spread) * odd


def converse(cost, machine, turns=8):
    """Prompts and answers of one to four people, in a context that fills."""
    span = 0
    for turn in range(turns):
        readers = 1 + turn % 4
        for _ in range(8):
            cost.measure(64, span, machine.step_s(64, span))
            span += 64
        for _ in range(40):
            cost.measure(readers, span, machine.step_s(readers, span))
            span += readers


def off(cost, machine, rows, span):
    return cost.seconds(rows, span) / machine.true_s(rows, span)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_what_is_computed_again_and_again_is_foretold(name, outliers):
    cost, machine = StepCost(), Machine(name, outliers=outliers)
    converse(cost, machine)
    for rows in (1, 2, 3, 4, 64):
        for span in (500, 3000):
            assert off(cost, machine, rows, span) == pytest.approx(1, abs=0.4), (rows, span)
    assert off(cost, machine, 64, 2000) == pytest.approx(1, abs=0.1)


def test_one_step_gives_the_whole_curve_the_machine_s_pace():
    for name in MACHINES:
        cost, machine = StepCost(), Machine(name, spread=0)
        cost.measure(16, 0, machine.true_s(16, 0))
        assert off(cost, machine, 16, 0) == pytest.approx(1, rel=0.05)
        assert all(1 / 5 < off(cost, machine, rows, 0) < 5 for rows in ROWS), name


def test_when_everything_gets_slower_what_was_not_computed_lately_is_slower_too():
    cost, machine = StepCost(), Machine("measured")
    converse(cost, machine)
    machine.pace = 2.0
    for _ in range(40):
        cost.measure(4, 3000, machine.step_s(4, 3000))
    assert off(cost, machine, 4, 3000) == pytest.approx(1, abs=0.1)
    assert 0.65 < off(cost, machine, 64, 3000) < 1.2


def test_one_odd_step_changes_little():
    cost, machine = StepCost(), Machine("measured")
    converse(cost, machine)
    before = cost.seconds(64, 1000)
    cost.measure(64, 1000, 100 * before)
    assert cost.seconds(64, 1000) < 1.2 * before


@pytest.mark.parametrize("seconds", [1e-9, 1e-3, 1e3])
def test_costs_stay_positive_whatever_is_measured(seconds):
    cost, machine = StepCost(), Machine("measured")
    for number in range(300):
        rows = ROWS[number % len(ROWS)]
        cost.measure(rows, number * 20, seconds if number % 3 else machine.step_s(rows, 0))
        assert (cost.at(0) > 0).all()
        assert (cost.at(10_000) > 0).all()
        assert np.isfinite(cost.at(0)).all()


def test_a_kept_curve_is_the_same_again():
    cost, machine = StepCost(), Machine("measured")
    assert not cost.is_measured
    converse(cost, machine)
    again = StepCost(cost.curve)
    assert again.is_measured
    assert again.curve == cost.curve
    assert again.seconds(37, 1234) == cost.seconds(37, 1234)


def test_between_two_numbers_of_rows_the_curve_is_straight_and_beyond_the_last_proportional():
    cost = StepCost(Curve(ROWS, tuple(float(rows) for rows in ROWS), tuple(rows / 10 for rows in ROWS)))
    assert cost.seconds(5, 0) == 5
    assert cost.seconds(100, 2000) == pytest.approx(100 + 2 * 10)
    assert cost.seconds(1024, 0) == 1024
    rows = np.array([5, 100, 1024])
    assert cost.seconds_of(rows, np.full(3, 2000.0)) == pytest.approx([6, 120, 1024 * 1.2])
    assert cost.seconds_of(rows, 1000.0 * np.arange(3)) == pytest.approx([5, 110, 1024 * 1.2])


def test_the_price_of_a_row_is_that_of_the_best_step_that_is_short_enough():
    quick = StepCost(Curve(ROWS, tuple((rows + 9) / 1000 for rows in ROWS), (0.0,) * len(ROWS)))
    best = max(rows for rows in ROWS if (rows + 9) / 1000 <= LONGEST_S)
    assert quick.best(0) == (best, pytest.approx((best + 9) / 1000))
    slow = StepCost(Curve(ROWS, tuple(10.0 * rows for rows in ROWS), (0.0,) * len(ROWS)))
    assert slow.best(0) == (1, pytest.approx(10.0))
