import math

import msgspec
import pytest

from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES, Computer, WeightSpeed, read_speed, write_speed

COSTS = tuple(1e-11 * rows for rows in ROWS)
HERE = Computer("build 1", 2, "a CPU")
SPEED = WeightSpeed(HERE, ROWS, COSTS, (0.0,) * len(ROWS), {"Q4_0": COSTS, "F16": COSTS})


def test_what_was_measured_is_there_at_the_next_start(tmp_path):
    file = tmp_path / "cache" / "speed.json"
    assert read_speed(file, HERE) is None
    write_speed(file, SPEED)
    assert read_speed(file, HERE) == SPEED
    assert file.stat().st_mode & 0o777 == 0o600
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize("changed", [{"build": "build 2"}, {"threads": 3}, {"cpu": "another CPU"}])
def test_another_build_number_of_threads_or_cpu_is_measured_anew(tmp_path, changed):
    file = tmp_path / "speed.json"
    write_speed(file, SPEED)
    assert read_speed(file, msgspec.structs.replace(HERE, **changed)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": (1, 2, 3, 4, 5)},
        {"layer_s": COSTS[1:]},
        {"width_s": (-1e-9, *COSTS[1:])},
        {"layer_s": (math.inf, *COSTS[1:])},
        {"weight_s": {}},
        {"weight_s": {"Q4_0": COSTS[1:]}},
        {"weight_s": {"Q4_0": (0.0, *COSTS[1:])}},
        {"weight_s": {"Q4_0": (math.nan, *COSTS[1:])}},
        {"weight_s": {"Q9_9": COSTS}},
        {"weight_s": {"Q4_0": (9e-11, *COSTS[1:])}},
        {"layer_s": (9e-11, *COSTS[1:])},
    ],
)
def test_costs_that_cannot_be_are_not_used(tmp_path, changed):
    assert SPEED.is_sound
    wrong = msgspec.structs.replace(SPEED, **changed)
    assert not wrong.is_sound
    write_speed(tmp_path / "speed.json", wrong)
    assert read_speed(tmp_path / "speed.json", HERE) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"rows": 1}'])
def test_a_damaged_file_is_not_used(tmp_path, data):
    (tmp_path / "speed.json").write_bytes(data)
    assert read_speed(tmp_path / "speed.json", HERE) is None


def test_the_memory_is_as_fast_as_the_type_that_reads_most():
    # F16 has 2 bytes a weight, Q4_0 18 bytes for 32; a step of one row takes 1e-11 s for each.
    assert SPEED.memory_bytes_per_s == pytest.approx(2 / 1e-11)


def test_types_that_are_measured_are_types():
    assert set(WEIGHT_TYPES) <= TYPES_BY_NAME.keys()
    assert len(set(WEIGHT_TYPES)) == len(WEIGHT_TYPES)
