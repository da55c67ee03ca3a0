"""Planned bytes of KV against what llama.cpp allocates for real files of many architectures."""

import dataclasses
import io
import math
from pathlib import Path
from types import MappingProxyType

import pytest
from architecture_zoo import ZOO

from pinyon.engine.native import Context, Model, NativeLog
from pinyon.models.gguf_header import read_header
from pinyon.models.gguf_reader import ArrayInfo, ValueType
from pinyon.models.memory.kv import KvChoice, KvType, bytes_per_token, kv_bytes, possible_types
from pinyon.models.memory.layers import Layer, kept_layers
from pinyon.models.memory.sizes import model_sizes

MIB = 1 << 20
WIDTH = 128
BATCH = 128
# With this many cells the two decimals of the log tell a difference of one byte a cell.
MANY_CELLS = 16_384


@pytest.fixture(scope="module")
def native():
    """What llama.cpp says it allocates for a model's KV: (path, choice) -> sizes in MiB with two decimals."""
    log = NativeLog(io.StringIO())

    def allocated(path: Path, choice: KvChoice) -> list[float]:
        model = Model(path, log, lambda _fraction: True)
        log.buffers.clear()
        context = Context(
            model,
            log,
            cells=choice.cells,
            sequence_ids=choice.sequences,
            batch_rows=choice.batch_rows,
            threads=1,
            full_window=choice.full_window,
            kv_type=choice.type.value,
        )
        context.close()
        model.close()
        return [buffer.size_bytes / MIB for buffer in log.buffers if buffer.purpose in {"KV", "RS"}]

    return allocated


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return {name: sketch(WIDTH).write(folder / f"{number}.gguf") for number, (name, sketch) in enumerate(ZOO.items())}


@pytest.mark.parametrize("name", ZOO)
def test_planned_kv_is_what_llama_cpp_allocates(name, zoo, native):
    kept = kept_layers(read_header(zoo[name]))
    choices = [
        KvChoice(MANY_CELLS, 8, BATCH, kind, full_window=full)
        for kind in possible_types(kept)
        for full in ((True, False) if kept.window else (True,))
    ]
    choices += [KvChoice(1000, 1, BATCH), KvChoice(2048, 64, BATCH), KvChoice(700, 3, BATCH, full_window=False)]
    assert len({KvType.F16, KvType.Q8_0, KvType.Q4_0} & set(possible_types(kept))) == 3
    for choice in choices:
        sizes = native(zoo[name], choice)
        assert sizes, choice
        assert sum(sizes) == pytest.approx(kv_bytes(kept, choice) / MIB, abs=0.005 * len(sizes) + 1e-6), choice
    assert kept.is_exact


@pytest.mark.parametrize(
    "fault",
    [
        lambda layer: Layer(layer.key_elements + 32, layer.value_elements, layer.state_elements, layer.is_windowed),
        lambda layer: Layer(layer.key_elements, layer.value_elements, layer.state_elements + 2048, layer.is_windowed),
        lambda layer: Layer(layer.key_elements, layer.value_elements, layer.state_elements, not layer.is_windowed),
        lambda layer: Layer(layer.key_elements, 0, layer.state_elements, layer.is_windowed),
    ],
)
def test_a_wrong_layer_is_noticed(fault, zoo, native):
    kept = kept_layers(read_header(zoo["gemma3"]))
    wrong = type(kept)((fault(kept.layers[0]), *kept.layers[1:]), kept.window, kept.head_elements, kept.is_exact)
    choice = KvChoice(MANY_CELLS, 8, BATCH, full_window=False)
    sizes = native(zoo["gemma3"], choice)
    assert abs(sum(sizes) - kv_bytes(wrong, choice) / MIB) > 0.005 * len(sizes)


def test_bytes_of_a_token_follow_the_formula(zoo):
    kept = kept_layers(read_header(zoo["llama"]))
    heads, head, layers = 2, 32, 2
    assert bytes_per_token(kept, KvType.F16) == layers * heads * (head * 2 + head * 2)
    assert bytes_per_token(kept, KvType.Q8_0) == layers * heads * 2 * 34
    assert bytes_per_token(kept, KvType.Q4_0) == layers * heads * 2 * 18


@pytest.mark.model
def test_real_models_have_the_bytes_that_were_measured(smollm2):
    assert bytes_per_token(kept_layers(read_header(smollm2)), KvType.F16) == 30 * 3 * 2 * 64 * 2


@pytest.mark.parametrize("suffix", ["feed_forward_length", "attention.sliding_window_pattern"])
def test_floats_are_no_numbers_of_elements(zoo, suffix):
    header = read_header(zoo["gemma3"])
    odd = ArrayInfo(ValueType.FLOAT32, 64, (math.nan, math.inf) * 32)
    values = {**header.metadata, f"{header.architecture}.{suffix}": odd}
    found = model_sizes((dataclasses.replace(header, metadata=MappingProxyType(values)),))
    assert (found.widths.feed_forward == 0) == (suffix == "feed_forward_length")
