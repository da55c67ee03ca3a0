import numpy as np
import pytest

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cost_model import CostModel
from pinyon.engine.step_budget import LEAST_ROWS, StepBudget
from pinyon.engine.step_cost import LONGEST_S
from pinyon.engine.step_curve import ROWS, Curve


def budget(row_s, step_s=0.01, stall_s=0.15, max_rows=512):
    """A machine on which a step takes some time, and as much again for each row."""
    costs = CostModel()
    costs.go_on_with(Curve(ROWS, tuple(step_s + row_s * rows for rows in ROWS), (1e-9,) * len(ROWS)))
    return StepBudget(costs, max_rows=max_rows, stall_s=stall_s)


def chunk(budget, reading=0):
    step = budget.step(reading=reading, span=0)
    step.take(reading, chosen=reading)
    return step.chunk_rows()


@pytest.mark.parametrize(
    ("reading", "row_s", "limit_s"),
    [(0, 0.001, LONGEST_S), (1, 0.001, 0.15), (4, 0.001, 0.15), (4, 0.05, 2 * 0.21)],
    ids=["nobody reads", "one does", "some do", "on a slow machine"],
)
def test_a_step_may_take_what_people_do_not_notice_or_twice_what_it_takes_anyway(reading, row_s, limit_s):
    assert budget(row_s).limit_s(reading, 0) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("row_s", "reading", "rows"),
    [(0.001, 0, 448), (0.001, 1, 128), (0.002, 4, 64), (0.01, 4, 8), (0.04, 1, 0)],
)
def test_a_prompt_gets_as_many_rows_as_there_is_time_for(row_s, reading, rows):
    made = budget(row_s)
    assert chunk(made, reading) == rows
    assert rows % BLOCK_TOKENS == 0 or (rows + reading) % LEAST_ROWS == 0
    if rows:
        taken_s = made.costs.steps_s(np.array([reading + rows]), 0, reading)[0]
        assert taken_s <= made.limit_s(reading, 0)


def test_a_step_holds_no_more_than_it_can():
    made = budget(1e-6, max_rows=130)
    assert chunk(made) == 128
    assert chunk(made, reading=10) == 64
    step = made.step(reading=0, span=0)
    assert step.is_empty
    step.take(130, chosen=130)
    assert not step.is_empty
    assert not step.has_room
    assert step.chunk_rows() == 0


def test_a_decoding_row_has_room_while_there_is_time():
    step = budget(0.04).step(reading=1, span=0)
    taken = 0
    while step.has_room:
        step.take(1, chosen=1)
        taken += 1
    assert taken == 3
