import os
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from pinyon.engine import weight_probe
from pinyon.engine.errors import ModelLoadError
from pinyon.engine.hollow_model import Shape
from pinyon.engine.native import NativeLog
from pinyon.engine.probe_messages import LayerCost, ProbeOrder, WeightCost, WeightType
from pinyon.engine.weight_probe import Probe, cache_bytes

ROWS = (1, 64)
Q4_0, Q8_0, REMOVED = WeightType(2, 32, 18), WeightType(8, 32, 34), WeightType(4, 32, 18)
WEIGHT_S = {Q4_0: np.array([2e-11, 9e-11]), Q8_0: np.array([3e-11, 8e-11])}
LAYER_S, WIDTH_S = np.array([5e-6, 7e-6]), np.array([1e-9, 3e-9])


def order(*types: WeightType, reference: WeightType = Q4_0, passes: int = 1) -> ProbeOrder:
    return ProbeOrder(1, ROWS, passes, reference, types)


@pytest.fixture
def machine(monkeypatch):
    """Steps cost exactly what is said above; what is planted comes on top, in turn."""
    planted: list[float] = []

    def steps_s(_self: Probe, shape: Shape, kind: WeightType, rows: Sequence[int]) -> np.ndarray:
        if kind not in WEIGHT_S:
            raise ModelLoadError("no such type")
        places = [ROWS.index(count) for count in rows]
        layers_s = shape.layers * (LAYER_S + shape.width * WIDTH_S)
        steps_s = shape.layers * shape.layer_weights * WEIGHT_S[kind] + layers_s
        return steps_s[places] + (planted.pop(0) if planted else 0.0)

    monkeypatch.setattr(Probe, "_steps_s", steps_s)
    return planted


def lines(tmp_path, asked: ProbeOrder) -> list[LayerCost | WeightCost]:
    with open(os.devnull, "w") as nowhere:
        return [*Probe(asked, tmp_path, NativeLog(nowhere), 64 << 20).lines()]


def test_weights_layers_and_their_width_are_told_apart(machine, tmp_path):
    layer, q4_0, q8_0 = lines(tmp_path, order(Q4_0, Q8_0))
    assert layer.layer_s == pytest.approx(LAYER_S)
    assert layer.width_s == pytest.approx(WIDTH_S)
    assert (q4_0.number, q8_0.number) == (2, 8)
    assert q4_0.weight_s == pytest.approx(WEIGHT_S[Q4_0])
    assert q8_0.weight_s == pytest.approx(WEIGHT_S[Q8_0])


def test_other_programs_must_disturb_all_passes_to_be_noticed(machine, tmp_path):
    machine += [0, 0, 0.1, 0, 0, 0, 0, 0.1]  # the thin model in the first pass, the wide one in the second
    layer, *weights = lines(tmp_path, order(Q4_0, passes=2))
    assert layer.layer_s == pytest.approx(LAYER_S)
    assert layer.width_s == pytest.approx(WIDTH_S)
    assert len(weights) == 2


def test_layers_never_cost_less_than_nothing(machine, tmp_path):
    machine += [0, 0, 0, -0.001]
    (layer,) = lines(tmp_path, order())
    assert min(layer.width_s) == 0


def test_a_type_that_the_build_cannot_load_has_no_cost(machine, tmp_path):
    _, removed, q8_0 = lines(tmp_path, order(REMOVED, Q8_0))
    assert removed == WeightCost(4, ())
    assert q8_0.weight_s == pytest.approx(WEIGHT_S[Q8_0])


def test_without_the_reference_nothing_can_be_measured(machine, tmp_path):
    with pytest.raises(ModelLoadError):
        lines(tmp_path, order(Q8_0, reference=REMOVED))


@pytest.mark.parametrize(("kind", "bits"), [(Q8_0, 8.5), (WeightType(19, 256, 50), 4)])
def test_weights_are_larger_than_caches_or_many(machine, tmp_path, kind, bits):
    with open(os.devnull, "w") as nowhere:
        shape, small = Probe(order(), tmp_path, NativeLog(nowhere), 64 << 20)._heavy(kind)
    assert small.layers == 2
    assert (
        shape.layers * shape.layer_weights * bits / 8 >= 64 << 20 > (shape.layers - 1) * shape.layer_weights * bits / 8
    )


def test_real_steps_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(weight_probe, "_MODEL_S", 0.0)
    monkeypatch.setattr(weight_probe, "_WIDTH", 256)
    monkeypatch.setattr(weight_probe, "_FEED_FORWARD", 512)
    with open(os.devnull, "w") as nowhere:
        probe = Probe(order(), tmp_path, NativeLog(nowhere), 1 << 18)
        steps_s = probe._heavy_steps_s(Q8_0)
    assert steps_s.shape == (2,)
    assert np.isfinite(steps_s).all()


def test_the_largest_cache_counts(tmp_path):
    for index, text in enumerate(("32K\n", "1024K\n", "32768K\n", "?")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert cache_bytes(tmp_path) == 32 << 20
    assert cache_bytes(tmp_path / "missing") == 32 << 20


def test_what_it_says_can_be_read():
    line = msgspec.json.encode(WeightCost(2, (1e-11, 2e-11)))
    assert msgspec.json.decode(line, type=LayerCost | WeightCost) == WeightCost(2, (1e-11, 2e-11))
