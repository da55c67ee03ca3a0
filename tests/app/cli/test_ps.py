"""What `pinyon ps` shows of an engine."""

from pinyon.app.cli.ps import _meter_rows
from pinyon.engine.meters import Meters, Service
from pinyon.engine.tally import Counts


def test_how_people_are_served_is_shown_where_anybody_was():
    served = Meters(
        cells=100,
        held_cells=60,
        service=Service(
            preempted=2,
            refused=1_000,
            queue_s=Counts((0.1, 0.2), (8, 2, 0), 0.9),
            ttft_s=Counts((0.5, 1.0), (0, 10, 0), 7.0),
            step_s=Counts((0.1,), (40, 0), 1.0),
            step_rows=Counts((8.0,), (40, 0), 100.0),
        ),
    )
    rows = dict(_meter_rows(served))
    assert rows["queue"] == "p50 0.0625 s, p95 0.175 s"
    assert rows["TTFT"] == "p50 0.75 s, p95 0.975 s"
    assert rows["step"] == "p50 0.05 s, p95 0.095 s"
    assert rows["batch"] == "2.5 tokens a step"
    assert rows["service"] == "2 gave way, 1,000 refused"
    assert not {"TPOT", "ITL"} & rows.keys(), "nothing was counted"


def test_before_the_first_step_nothing_is_said_of_service():
    assert not {"queue", "TTFT", "TPOT", "ITL", "step", "batch", "service"} & dict(_meter_rows(Meters())).keys()
