"""R43: what is planned against what a process takes, all in all. `tests/bench/memory_exact.py` does so for every architecture."""

import sys
from dataclasses import replace

import pytest
from architecture_zoo import ZOO
from taken_memory import taken

from pinyon.app.fit import layout, sizes_here
from pinyon.models.memory.kv import KvType
from pinyon.models.memory.plan import Choice, memory_plan
from pinyon.models.split_files import headers_of

pytestmark = [pytest.mark.model, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

MIB = 1 << 20
TOLERANCE = 0.1


@pytest.mark.parametrize("name", ["phi3", "qwen3", "gemma3", "jamba", "qwen3moe"])
@pytest.mark.parametrize("kv_type", [KvType.F16, KvType.Q8_0])
def test_a_small_model_takes_what_was_planned(name, kv_type, tmp_path):
    path = ZOO[name](128).write(tmp_path / "model.gguf")
    sizes = sizes_here(headers_of(path))
    choice = replace(layout(2048, sizes, full_window=True), type=kv_type)
    planned_mib = memory_plan(sizes, Choice(choice)).ram.resident_bytes / MIB
    assert planned_mib == pytest.approx(taken(path, choice).total_mib, rel=TOLERANCE)


def test_a_model_with_much_kv_takes_what_was_planned_and_a_plan_without_it_is_noticed(smollm2):
    sizes = sizes_here(headers_of(smollm2))
    choice = layout(2048, sizes, full_window=True)
    ram = memory_plan(sizes, Choice(choice)).ram
    found = taken(smollm2, choice).total_mib
    assert ram.resident_bytes / MIB == pytest.approx(found, rel=TOLERANCE)
    assert (ram.resident_bytes - ram.kv_bytes) / MIB != pytest.approx(found, rel=TOLERANCE)
