import msgspec
import pytest
from fakes import make_engine, run_to_end

from pinyon.engine import cost_file
from pinyon.engine.cost_file import CostFile
from pinyon.engine.file_system import FileSystem
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.step_curve import ROWS, Curve

CURVE = Curve(ROWS, tuple(0.1 * rows for rows in ROWS), tuple(0.01 * rows for rows in ROWS))


def opened(folder, digest="d" * 64, build="build 1", threads="2 threads", files=None):
    return CostFile(folder / "calibration", digest, build, threads, files=files or FileSystem())


def test_what_is_kept_is_there_at_the_next_start(tmp_path):
    assert opened(tmp_path).kept is None
    opened(tmp_path).keep(CURVE)
    assert opened(tmp_path).kept == CURVE
    (file,) = (tmp_path / "calibration").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "calibration").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("other", [{"digest": "e" * 64}, {"threads": "3 threads"}, {"build": "build 2"}])
def test_another_model_number_of_threads_or_build_has_costs_of_its_own(tmp_path, other):
    opened(tmp_path).keep(CURVE)
    assert opened(tmp_path, **other).kept is None


def test_another_machine_has_costs_of_its_own(tmp_path, monkeypatch):
    opened(tmp_path).keep(CURVE)
    monkeypatch.setattr(cost_file, "cpu_name", lambda: "another one")
    assert opened(tmp_path).kept is None


def test_an_engine_goes_on_with_what_is_kept_and_keeps_what_it_learns(tmp_path):
    opened(tmp_path).keep(CURVE)
    engine = make_engine(cells=1024).engine
    engine._calibration = object()
    engine.use_costs(opened(tmp_path))
    assert engine._calibration is None, "it need not be measured"
    assert engine.meters().curve == CURVE
    run_to_end(engine, GenerateRequest("a", (Text("x" * 300),), SamplingParams(temperature=0), 20))
    engine.close()
    assert opened(tmp_path).kept == engine.meters().curve != CURVE


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"null",
        msgspec.json.encode(CURVE)[:-20],
        msgspec.json.encode(msgspec.structs.replace(CURVE, rows=(1, 2))),
        msgspec.json.encode(msgspec.structs.replace(CURVE, base_s=(-1.0, *CURVE.base_s[1:]))),
        msgspec.json.encode(msgspec.structs.replace(CURVE, span_s=CURVE.span_s[1:])),
        msgspec.json.encode(CURVE).replace(b"0.1", b"1e999"),
    ],
)
def test_what_cannot_be_costs_is_not_taken(tmp_path, damaged):
    opened(tmp_path).keep(CURVE)
    (file,) = (tmp_path / "calibration").iterdir()
    file.write_bytes(damaged)
    assert opened(tmp_path).kept is None


def test_a_full_disk_costs_nothing_else(tmp_path):
    class Full(FileSystem):
        def write(self, path, parts):
            raise OSError(28, "No space left on device")

    opened(tmp_path).keep(CURVE)
    opened(tmp_path, files=Full()).keep(msgspec.structs.replace(CURVE, base_s=CURVE.span_s))
    assert opened(tmp_path).kept == CURVE
