"""What `pinyon ps` shows of an engine."""

from pinyon.app.cli.ps import _meter_rows, _model_rows
from pinyon.app.wire import Memory, ModelStatus
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


def test_what_a_model_was_planned_to_take_stands_beside_what_it_takes_and_what_was_given_up():
    memory = Memory(
        kv_type="q8_0",
        weights_bytes=900_000_000,
        mapped_bytes=800_000_000,
        kv_bytes=300_000_000,
        compute_bytes=50_000_000,
        cache_bytes=64_000_000,
        ram_bytes=700_000_000,
        gpu_bytes={"CUDA0": 600_000_000},
        compromises=("keys and values in q8_0: this can cost quality",),
    )
    meters = Meters(cells=4096, rss_bytes=710_000_000, available_bytes=1_000_000_000)
    rows = _model_rows(ModelStatus("small", b"/m.gguf", "ready", 4096, 2, 1, 3, memory, meters))
    assert rows[:5] == [
        ("model", "small (context 4,096 tokens, KV in q8_0, 2 threads)"),
        ("engine", "ready"),
        ("answers", "1 running, 3 waiting"),
        ("fits by", "keys and values in q8_0: this can cost quality"),
        (
            "planned",
            (
                "700 MB of RAM, 600 MB of CUDA0: weights 900 MB (800 MB of them pages of the file), KV 300 MB, computing 50 MB; "
                "up to 64 MB more for KV of earlier prompts"
            ),
        ),
    ]
    assert dict(rows)["memory"] == "710 MB used by the engine, 1,000 MB available"
    busy = _model_rows(ModelStatus("small", b"/m.gguf", "stuck", 4096, 2, 0, 0, memory))
    assert [name for name, _ in busy] == ["model", "engine", "answers", "fits by", "planned"]
