import pytest

from pinyon.engine.cost_model import CostModel, Rate
from pinyon.engine.step_cost import PASSED


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
    for _ in range(20):
        costs.measure_step(64, 0, 0.128)
    costs.measure_restore(1000, 0.5)
    assert (costs.prefill_s(0), costs.prefill_s(50)) == (0, pytest.approx(0.1, rel=0.1))
    assert (costs.restore_s(0), costs.restore_s(3000)) == (0, pytest.approx(1.5))


def test_speeds_are_told_once_they_were_measured():
    costs = CostModel()
    assert (costs.prefill_tokens_per_s, costs.restore_bytes_per_s) == (0, 0)
    for _ in range(20):
        costs.measure_step(64, 0, 0.128)
    costs.measure_restore(1000, 0.5)
    assert costs.prefill_tokens_per_s == pytest.approx(500, rel=0.1)
    assert costs.restore_bytes_per_s == pytest.approx(2000)


def test_choosing_tokens_is_a_part_of_a_step():
    costs = CostModel()
    costs.measure_step(4, 0, 0.1)
    costs.measure_sampling(4, 0.04)
    assert costs.step_s(4, 0, 4) - costs.step_s(4, 0) == pytest.approx(0.04)


def test_what_is_in_the_context_makes_prompts_dearer():
    costs = CostModel()
    costs.measure_step(64, 0, 0.2)
    assert costs.prefill_s(64, 4000) > costs.prefill_s(64)
    assert costs.prefill_cell_s(64) * 1000 == pytest.approx(
        PASSED * (costs.prefill_s(64, 1000) - costs.prefill_s(64)), rel=0.01
    )


def test_before_anything_is_measured_restoring_pays():
    costs = CostModel()
    assert costs.restore_s(64 * 30_000) < costs.prefill_s(64)
