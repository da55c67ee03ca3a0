"""What is counted of how people are served."""

import pytest

from pinyon.engine.events import Finished, FinishReason, Timings, Usage
from pinyon.engine.meters import Pace
from pinyon.engine.service_meters import SLOW, SLOW_S, ServiceMeters


def finished(tokens, *, choices=1, decode_s=3.0):
    return Finished((FinishReason.STOP,) * choices, Usage(5, tokens), Timings(0.25, 0.5, decode_s), 1)


@pytest.mark.parametrize(
    ("answer", "firsts_s", "means_s"),
    [
        (finished(4), [0.75], [1.0]),
        (finished(8, choices=2), [0.75], [1.0]),
        (finished(1, decode_s=0.0), [0.75], []),
        (finished(0, decode_s=0.0), [], []),
    ],
)
def test_the_time_of_a_token_is_the_mean_after_the_first(answer, firsts_s, means_s):
    service = ServiceMeters()
    service.take_answer(answer)
    counted = service.counted(preempted=0)
    assert (counted.queue_s.number, counted.queue_s.total) == (1, 0.25)
    assert (counted.ttft_s.number, counted.ttft_s.total) == (len(firsts_s), sum(firsts_s))
    assert (counted.tpot_s.number, counted.tpot_s.total) == (len(means_s), sum(means_s))


@pytest.mark.parametrize(
    ("seconds", "predicted_s", "is_slow"),
    [
        (SLOW_S + 1, (SLOW_S + 1) / SLOW / 2, True),
        (SLOW_S + 1, SLOW_S, False),
        (SLOW_S / 2, SLOW_S / 2 / SLOW / 2, False),
    ],
    ids=["far longer than predicted", "long, as predicted", "short"],
)
def test_a_step_that_takes_far_longer_than_predicted_is_reported(seconds, predicted_s, is_slow, capfd):
    service = ServiceMeters()
    service.take_step(7, seconds, predicted_s)
    counted = service.counted(preempted=0)
    assert (counted.step_s.number, counted.step_rows.total, counted.slow_steps) == (1, 7, int(is_slow))
    assert ("a step of 7 rows took" in capfd.readouterr().err) == is_slow


def test_the_pace_of_steps_is_told_by_their_rows():
    service = ServiceMeters()
    for rows, seconds in [(1, 0.1), (1, 0.3), (8, 0.5), (7, 9.0), (63, 9.0), (64, 0.2), (512, 1.4)]:
        service.take_step(rows, seconds, 100.0)
    counted = service.counted(preempted=0)
    paces = counted.one_row, counted.eight_rows, counted.prompt_rows
    assert [pace.rows for pace in paces] == [2, 8, 576]
    assert [pace.rows_per_s for pace in paces] == pytest.approx([5.0, 16.0, 360.0])
    assert Pace().rows_per_s == 0.0
