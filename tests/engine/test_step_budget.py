import numpy as np
import pytest

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cost_model import CostModel
from pinyon.engine.step_budget import GROUP, StepBudget
from pinyon.engine.step_cost import LONGEST_S
from pinyon.engine.step_curve import ROWS, Curve


def budget(row_s, step_s=0.01, stall_s=0.15, max_rows=512):
    """A machine on which a step takes some time, and as much again for each row."""
    costs = CostModel()
    costs.go_on_with(Curve(ROWS, tuple(step_s + row_s * rows for rows in ROWS), (1e-9,) * len(ROWS)))
    return StepBudget(costs, max_rows=max_rows, stall_s=stall_s)


def chunk(budget, reading=0):
    step = budget.step([0] * reading, 0)
    step.take(reading, 0, chosen=reading)
    return step.chunk_rows(0)


@pytest.mark.parametrize(
    ("reading", "row_s", "limit_s"),
    [(0, 0.001, LONGEST_S), (1, 0.001, 0.15), (4, 0.001, 0.15), (4, 0.05, 2 * 0.21)],
    ids=["nobody reads", "one does", "some do", "on a slow machine"],
)
def test_a_step_may_take_what_people_do_not_notice_or_twice_what_it_takes_anyway(reading, row_s, limit_s):
    assert budget(row_s).limit_s([0] * reading, 0) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("row_s", "reading", "rows"),
    [
        (0.001, 0, 448),
        (0.001, 1, 128),
        (0.002, 4, 64),
        (0.01, 4, 8),
        (0.04, 1, 2),
        (0.04, 2, 2),
        (0.06, 2, 2),
        (0.15, 1, 1),
    ],
)
def test_a_prompt_gets_as_many_rows_as_there_is_time_for(row_s, reading, rows):
    made = budget(row_s)
    assert chunk(made, reading) == rows
    assert rows % BLOCK_TOKENS == 0 or (rows + reading) % GROUP == 0 or rows < GROUP
    if rows:
        taken_s = made.costs.step_s(reading + rows, 0, reading)
        assert taken_s <= made.limit_s([0] * reading, 0)


def test_a_step_holds_no_more_than_it_can():
    made = budget(1e-6, max_rows=130)
    assert chunk(made) == 128
    assert chunk(made, reading=10) == 64
    step = made.step([], 0)
    assert step.is_empty
    step.take(130, 0, chosen=130)
    assert not step.is_empty
    assert not step.has_room(0)
    assert step.chunk_rows(0) == 0


def test_a_decoding_row_has_room_while_there_is_time():
    step = budget(0.04).step([0], 0)
    taken = 0
    while step.has_room(0):
        step.take(1, 0, chosen=1)
        taken += 1
    assert taken == 3


def test_rows_cost_what_they_read_and_a_little_of_what_they_pass_over():
    costs = CostModel()
    costs.go_on_with(Curve(ROWS, (0.01,) * len(ROWS), tuple(0.01 * rows for rows in ROWS)))  # 10 ms for 1,000 cells
    made = StepBudget(costs, max_rows=512, stall_s=0.15)
    assert made.limit_s([1000] * 10, 1000) == pytest.approx(2 * 0.11)
    assert made.limit_s([0] * 10, 1000) == pytest.approx(0.15), "ten answers that are short, beside a long one"
    step = made.step([0] * 4, 8000)
    step.take(4, 0, chosen=4)
    assert step.chunk_rows(8000) == 1, "32 ms for passing over 8,000 cells four times, 10 for the step, 80 a row"
    assert step.chunk_rows(0) == 12
    assert (step.has_room(8000), step.has_room(20_000)) == (True, False)


@pytest.mark.parametrize(("reading", "limit_s"), [(1, LONGEST_S), (2, 0.15), (4, 0.15)])
def test_drafts_may_take_long_only_where_nobody_else_waits(reading, limit_s):
    step = budget(0.001).step([100] * reading, 400)
    for _ in range(reading):
        step.take(1, 100, chosen=1)
    assert step.draft_limit_s == limit_s
    assert step.room == 512 - reading


def test_what_a_step_takes_with_drafts():
    made = budget(0.002)
    made.costs.measure_sampling(1, 0.1)
    step = made.step([100, 100], 400)
    for _ in range(2):
        step.take(1, 100, chosen=1)
    seconds = step.seconds_with(np.array([0, 6, 30]), np.array([2.0, 4.5, 10.0]))
    assert seconds == pytest.approx([0.014 + 0.2, 0.026 + 0.45, 0.074 + 1.0], rel=0.01)
