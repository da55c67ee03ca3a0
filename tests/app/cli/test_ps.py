"""What `pinyon ps` shows of an engine."""

import msgspec
import pytest
from architecture_zoo import ZOO

from pinyon.app.cli.ps import _meter_rows, _model_rows, _Pair, _Speeds, _speeds
from pinyon.app.machine_speed import _computer
from pinyon.app.settings import Folders
from pinyon.app.wire import Memory, ModelStatus, Taken
from pinyon.engine.config import Buffer
from pinyon.engine.meters import Meters, Pace, Service
from pinyon.engine.tally import Counts
from pinyon.models.gguf_header import read_header
from pinyon.models.machine.weight_speed import ROWS, WeightSpeed, write_speed
from pinyon.models.speed_prediction import predicted_speed

NONE = _Speeds(*[_Pair(None, None)] * 3)
MEMORY = Memory("f16", 100, 90, 30, 24, 1000, 160, {}, ())


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
    rows = dict(_meter_rows(served, NONE))
    assert rows["queue"] == "p50 0.0625 s, p95 0.175 s"
    assert rows["TTFT"] == "p50 0.75 s, p95 0.975 s"
    assert rows["step"] == "p50 0.05 s, p95 0.095 s"
    assert rows["batch"] == "2.5 tokens a step"
    assert rows["service"] == "2 gave way, 1,000 refused"
    assert not {"TPOT", "ITL"} & rows.keys(), "nothing was counted"


def test_before_the_first_step_nothing_is_said_of_service():
    assert not {"queue", "TTFT", "TPOT", "ITL", "step", "batch", "service"} & dict(_meter_rows(Meters(), NONE)).keys()


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
    rows = _model_rows(ModelStatus("small", b"/m.gguf", "ready", 4096, 2, 1, 3, memory, meters), NONE)
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
    busy = _model_rows(ModelStatus("small", b"/m.gguf", "stuck", 4096, 2, 0, 0, memory), NONE)
    assert [name for name, _ in busy] == ["model", "engine", "answers", "fits by", "planned"]


def test_what_llama_cpp_took_stands_beside_what_was_planned():
    buffers = (
        Buffer("model", "CPU_Mapped", 700_000_000),
        Buffer("model", "CPU_REPACK", 200_000_000),
        Buffer("KV", "CPU", 299_000_000),
        Buffer("RS", "CPU", 2_000_000),
        Buffer("compute", "CPU", 40_000_000),
        Buffer("output", "CPU", 8_000_000),
    )
    assert Taken.of(()) is None
    taken = msgspec.structs.replace(MEMORY, taken=Taken.of(buffers))
    rows = dict(_model_rows(ModelStatus("m", b"/m", "ready", 4096, 2, 0, 0, taken), NONE))
    assert rows["taken"] == "weights 900 MB, KV 301 MB, computing 48 MB, as llama.cpp tells"
    assert "taken" not in dict(_model_rows(ModelStatus("m", b"/m", "ready", 4096, 2, 0, 0, MEMORY), NONE))


def test_what_is_being_loaded_is_told_with_its_progress():
    rows = dict(_model_rows(ModelStatus("m", b"/m", "loading", 4096, 2, 0, 0, MEMORY, progress=0.425), NONE))
    assert rows["engine"] == "loading, 42%"


def test_what_was_measured_stands_beside_what_was_predicted():
    speeds = _Speeds(_Pair(80.4, 90.0), _Pair(None, 200.0), _Pair(1234.0, None))
    rows = dict(_meter_rows(Meters(restore_bytes_per_s=3e6), speeds))
    assert rows["speed"] == (
        "one answer 80 tokens/s (90 were predicted), prompts 1,234 tokens/s, KV comes back at 3 MB/s"
    )
    assert dict(_meter_rows(Meters(), _Speeds(*[_Pair(None, 9.0)] * 3)))["speed"] == "not measured yet"


def test_predictions_are_those_for_the_file_and_the_threads(tmp_path):
    folders = Folders.of_user({"PINYON_HOME": str(tmp_path / "home")})
    path = ZOO["llama"](128).write(tmp_path / "llama.gguf")
    costs = tuple(1e-11 * rows**0.5 for rows in ROWS)
    known = WeightSpeed(_computer(2), ROWS, (1e-6,) * len(ROWS), (0.0,) * len(ROWS), {"F32": costs, "Q4_K": costs})
    meters = Meters(service=Service(eight_rows=Pace(80, 0.5), prompt_rows=Pace(128, 0.25)))
    status = ModelStatus("m", str(path).encode(), "ready", 4096, 2, 0, 0, MEMORY, meters)
    measured = [None, 160.0, 512.0]
    assert [pair.predicted for pair in _speeds(status, folders)] == [None] * 3
    write_speed(folders.weight_speed, known)
    found = _speeds(status, folders)
    assert [pair.measured for pair in found] == measured
    guess = predicted_speed((read_header(path),), known)
    assert [pair.predicted for pair in found] == pytest.approx(
        [guess.decode_tokens_per_s, guess.batch_tokens_per_s, guess.prefill_tokens_per_s]
    )
    for other in ({"threads": 3}, {"path": b"/gone.gguf"}):
        nothing = _speeds(msgspec.structs.replace(status, **other), folders)
        assert [pair.predicted for pair in nothing] == [None] * 3
