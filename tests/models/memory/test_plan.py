"""Where weights, KV and buffers go."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from architecture_zoo import ZOO

from pinyon.engine.native import Model, NativeLog
from pinyon.models.gguf_header import read_header
from pinyon.models.memory.kv import KvChoice, KvType, kv_bytes
from pinyon.models.memory.plan import RAM, Choice, Gpu, memory_plan, with_draft
from pinyon.models.memory.sizes import model_sizes

MIB = 1 << 20
KV = KvChoice(4096, 8, 256)
X86_TYPES = frozenset({"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"})


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_sizes((read_header(ZOO["llama"](128).write(tmp_path_factory.mktemp("plan") / "llama.gguf")),))


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return model_sizes((read_header(ZOO["qwen3moe"](128).write(tmp_path_factory.mktemp("plan") / "moe.gguf")),))


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "deepseek2", "jamba", "gpt-oss"])
def test_weights_are_those_that_llama_cpp_loads(name, tmp_path):
    path = ZOO[name](128).write(tmp_path / "model.gguf")
    plan = memory_plan(model_sizes((read_header(path),)), Choice(KV))
    assert plan.ram.weights_bytes == pytest.approx(_loaded_bytes(path), abs=MIB / 100)
    assert plan.ram.mapped_bytes == plan.ram.weights_bytes


def _loaded_bytes(path: Path) -> float:
    log = NativeLog(io.StringIO())
    Model(path, log, lambda _fraction: True).close()
    return sum(buffer.size_bytes for buffer in log.buffers if buffer.purpose == "model")


@pytest.mark.parametrize("gpu_layers", range(4))
def test_everything_is_somewhere_once(llama, gpu_layers):
    on_cpu = memory_plan(llama, Choice(KV))
    plan = memory_plan(llama, Choice(KV, gpu_layers), (Gpu("GPU0", 1.0), Gpu("GPU1", 3.0)))
    twice = llama.input_bytes if llama.is_tied and gpu_layers else 0
    assert sum(need.weights_bytes for need in plan.devices) == on_cpu.ram.weights_bytes + twice
    assert sum(need.kv_bytes for need in plan.devices) == kv_bytes(llama.kept, KV)
    assert [need.device for need in plan.devices] == [RAM, "GPU0", "GPU1"]


def test_layers_go_to_gpus_from_the_last_one_by_what_is_free(llama):
    alone = memory_plan(llama, Choice(KV, 1), (Gpu("GPU0", 1.0),))
    assert alone.devices[1].weights_bytes == llama.output_bytes
    assert alone.devices[1].kv_bytes == 0
    one_more = memory_plan(llama, Choice(KV, 2), (Gpu("GPU0", 1.0),))
    assert one_more.devices[1].weights_bytes == llama.output_bytes + llama.layers[-1].bytes
    assert one_more.devices[1].kv_bytes == kv_bytes(llama.kept, KV) // 2
    both = memory_plan(llama, Choice(KV, 3), (Gpu("GPU0", 2.0), Gpu("GPU1", 1.0)))
    assert [need.weights_bytes for need in both.devices[1:]] == [
        sum(layer.bytes for layer in llama.layers),
        llama.output_bytes,
    ]
    assert both.ram.kv_bytes == 0


def test_experts_can_stay_in_ram(experts):
    gpus = (Gpu("GPU0", 1.0),)
    all_there = memory_plan(experts, Choice(KV, 3), gpus)
    one_here = memory_plan(experts, Choice(KV, 3, 1), gpus)
    assert all_there.devices[1].weights_bytes - one_here.devices[1].weights_bytes == experts.layers[0].experts > 0
    assert one_here.ram.weights_bytes - all_there.ram.weights_bytes == experts.layers[0].experts
    assert one_here.devices[1].kv_bytes == all_there.devices[1].kv_bytes


@pytest.mark.parametrize("gpu_layers", [0, 1, 3])
def test_a_draft_model_takes_what_it_would_alone_less_a_process(llama, experts, gpu_layers):
    gpus = (Gpu("GPU0", 1.0),)
    first = memory_plan(experts, Choice(KV, gpu_layers), gpus)
    second = memory_plan(llama, Choice(KV, 3 if gpu_layers else 0), gpus)
    both = with_draft(first, llama, gpus)
    assert both.choice == first.choice
    for kind in ("weights_bytes", "mapped_bytes", "kv_bytes", "compute_bytes", "output_bytes"):
        sums = [getattr(one, kind) + getattr(two, kind) for one, two in zip(first.devices, second.devices, strict=True)]
        assert [getattr(need, kind) for need in both.devices] == sums
    alone = memory_plan(llama, Choice(KV)).ram.process_bytes
    process = 50 * MIB
    assert first.ram.process_bytes < both.ram.process_bytes <= first.ram.process_bytes + alone - process
    assert both.devices[1].process_bytes == 0


def test_a_draft_models_keys_and_values_have_a_type_that_they_can_have(llama):
    eight_bits = replace(KV, type=KvType.Q8_0)
    plan = memory_plan(llama, Choice(eight_bits))
    other = replace(llama, kept=replace(llama.kept, head_elements=(20,)))
    assert with_draft(plan, llama).ram.kv_bytes == 2 * kv_bytes(llama.kept, eight_bits)
    assert with_draft(plan, other).ram.kv_bytes == kv_bytes(llama.kept, eight_bits) + kv_bytes(llama.kept, KV)


def test_weights_that_the_cpu_rewrites_are_no_pages_of_the_file(tmp_path):
    path = ZOO["llama"](128).write(tmp_path / "model.gguf")
    header = read_header(path)
    everything = frozenset({"F32"})
    sizes = model_sizes((header,), everything)
    matrices = sum(
        tensor.size_bytes for tensor in header.tensors if len(tensor.shape) > 1 and tensor.name != "token_embd.weight"
    )
    ram = memory_plan(sizes, Choice(KV)).ram
    assert ram.weights_bytes - ram.mapped_bytes == matrices
    assert memory_plan(sizes, Choice(KV, 3), (Gpu("GPU0", 1.0),)).ram.mapped_bytes == sizes.input_bytes


@pytest.mark.model
def test_a_real_file_is_rewritten_where_llama_cpp_does_so(smollm2):
    sizes = model_sizes((read_header(smollm2),), X86_TYPES)
    ram = memory_plan(sizes, Choice(KV)).ram
    assert ram.mapped_bytes == ram.weights_bytes == pytest.approx(92.10 * MIB, abs=MIB / 100)
