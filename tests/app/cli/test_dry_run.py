"""How long a prompt would take, from what was measured."""

import pytest

from pinyon.app.ask import SamplingChoice
from pinyon.app.cli.dry_run import _compute_s
from pinyon.app.history.records import Answered
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import FinishReason, Timings, Usage


def answered(prompt, cached, seconds):
    return Answered("m", "", SamplingChoice(), FinishReason.STOP, Usage(prompt, 1, 0, cached), Timings(0, seconds, 0))


@pytest.mark.parametrize(
    ("estimate", "answers", "expected"),
    [
        (Estimate(1000, compute_s=7, is_measured=True), [answered(500, 0, 1)], (7, True)),
        (Estimate(1000, compute_s=7), [], (7, False)),
        (Estimate(1000, ram=500, compute_s=7), [answered(600, 100, 5)], (5, True)),
        (Estimate(1000, compute_s=7), [answered(100, 0, 1), answered(200, 0, 1), answered(400, 0, 1)], (5, True)),
        (Estimate(1000, compute_s=7), [answered(500, 450, 1), answered(63, 0, 1), answered(500, 0, 0)], (7, False)),
    ],
    ids=["the engine's own", "nothing", "what was computed", "the median", "too little to tell"],
)
def test_seconds_to_compute(estimate, answers, expected):
    assert _compute_s(estimate, answers) == expected
