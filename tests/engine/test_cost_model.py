import pytest

from pinyon.engine.cost_model import CostModel, Rate


def test_the_first_measurement_replaces_the_guess():
    rate = Rate(7.0)
    assert rate.value == 7.0
    rate.measure(10, 20.0)
    assert rate.value == 2.0


def test_later_ones_move_it_a_little():
    rate = Rate(7.0)
    for seconds in (1.0, 2.0, 2.0):
        rate.measure(1, seconds)
    assert rate.value == pytest.approx(1.36)


def test_one_odd_measurement_is_forgotten():
    rate = Rate(0.0)
    for seconds in [1.0] * 5 + [100.0] + [1.0] * 40:
        rate.measure(1, seconds)
    assert rate.value == pytest.approx(1.0, rel=0.02)


def test_costs_are_proportional_to_tokens_and_to_bytes():
    costs = CostModel()
    costs.measure_prefill(100, 2.0)
    costs.measure_restore(1000, 0.5)
    assert (costs.prefill_s(0), costs.prefill_s(50)) == (0, pytest.approx(1.0))
    assert (costs.restore_s(0), costs.restore_s(3000)) == (0, pytest.approx(1.5))


def test_speeds_are_told_once_they_were_measured():
    costs = CostModel()
    assert (costs.prefill_tokens_per_s, costs.restore_bytes_per_s) == (0, 0)
    costs.measure_prefill(100, 2.0)
    costs.measure_restore(1000, 0.5)
    assert (costs.prefill_tokens_per_s, costs.restore_bytes_per_s) == (pytest.approx(50), pytest.approx(2000))


def test_before_anything_is_measured_restoring_pays():
    costs = CostModel()
    assert costs.restore_s(64 * 30_000) < costs.prefill_s(64)
