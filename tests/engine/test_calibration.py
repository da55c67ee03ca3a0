import io

import pytest
from asking import ask, config
from tiny_models import write_tiny_llama

from pinyon.engine.calibration import BUDGET_S, ROWS, Calibration
from pinyon.engine.cost_model import CostModel
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog


class FakeContext:
    """Takes `row_s` for each row, by the clock that the calibration reads."""

    def __init__(self, row_s, monkeypatch):
        self.now, self.row_s, self.rows, self.held = 0.0, row_s, [], 0
        monkeypatch.setattr("pinyon.engine.calibration.time.perf_counter", lambda: self.now)

    def decode(self, buffer, rows):
        assert list(buffer.positions[:rows]) == [*range(rows)]
        self.rows.append(rows)
        self.now += rows * self.row_s
        self.held += rows

    def remove_sequence(self, sequence_id):
        self.held = 0


def calibrated(context):
    costs = CostModel()
    calibration = Calibration(context, costs, 7)
    while not calibration.is_over:
        calibration.step()
    return costs


def test_a_quick_machine_is_measured_whole_and_holds_nothing_afterwards(monkeypatch):
    context = FakeContext(1e-4, monkeypatch)
    costs = calibrated(context)
    assert context.rows == [*ROWS]
    assert context.held == 0
    assert costs.step_s(64, 0) == pytest.approx(64e-4, rel=0.2)


def test_on_a_slow_machine_nobody_waits_long_for_the_end_of_a_step(monkeypatch):
    context = FakeContext(0.05, monkeypatch)
    calibrated(context)
    assert max(context.rows) * context.row_s <= 0.5
    assert sum(context.rows) * context.row_s <= BUDGET_S


@pytest.mark.model
def test_a_loaded_model_is_measured_while_nobody_asks_and_not_after_that(tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    loaded = load_engine(config(path), path, NativeLog(io.StringIO()))
    engine = loaded.engine
    size = loaded.context.state_bytes()
    while not engine._calibration.is_over:
        assert engine.tidy() == 0.0
    assert engine.meters().curve is not None
    assert loaded.context.state_bytes() == size, "cells are left"
    engine.submit(engine.prepare(ask("a")))
    assert engine._calibration is None, "real work tells more"
    engine.close()
    loaded.close()
