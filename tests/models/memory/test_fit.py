"""What is chosen under a budget."""

import random
from dataclasses import replace

import pytest
from architecture_zoo import ZOO
from hypothesis import given, settings
from hypothesis import strategies as st

from pinyon.models.gguf_header import read_header
from pinyon.models.memory.fit import SMALL_CONTEXT, USUAL_CONTEXT, Budget, Kind, Wish, fit, largest_context
from pinyon.models.memory.kv import KvChoice, KvType, bytes_per_token
from pinyon.models.memory.plan import RAM, Choice, Gpu, memory_plan
from pinyon.models.memory.sizes import model_sizes

MIB = 1 << 20
USED_SHARE = 0.97


def shape(context, sizes, full_window=True):
    rows = min(512, max(128, context // 4))
    full_window = full_window or sizes.kept.window * 8 + rows >= context
    return KvChoice(context, 8 if sizes.kept.has_state or not full_window else 64, rows, full_window=full_window)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    found = {}
    for number, (name, sketch) in enumerate(ZOO.items()):
        wide = sketch(128)
        wide.metadata["context_length"] = 1 << 17
        found[name] = model_sizes((read_header(wide.write(folder / f"{number}.gguf")),))
    return found


def _smallest_bytes(sizes, context=SMALL_CONTEXT, gpu_layers=0, gpus=()):
    return memory_plan(sizes, Choice(shape(context, sizes), gpu_layers), gpus).devices[-1].total_bytes


def test_what_is_asked_for_is_given_where_it_fits(models):
    sizes = models["llama"]
    found = fit(sizes, Budget(8 << 30), shape, Wish(context_tokens=100_000))
    assert (found.fits, found.context_tokens, found.compromises) == (True, 100_000, ())


def test_a_usual_context_is_chosen_and_the_whole_one_where_there_is_plenty(models):
    sizes = models["llama"]
    whole = memory_plan(sizes, Choice(shape(1 << 17, sizes))).total_bytes
    assert fit(sizes, Budget(8 * whole), shape).context_tokens == 1 << 17
    assert fit(sizes, Budget(8 * whole - 1), shape).context_tokens == USUAL_CONTEXT


def test_first_the_context_gets_smaller(models):
    sizes = models["llama"]
    budget = _smallest_bytes(sizes) + 3000 * bytes_per_token(sizes.kept, KvType.F16)
    found = fit(sizes, Budget(budget), shape)
    assert SMALL_CONTEXT < found.context_tokens < USUAL_CONTEXT
    assert [compromise.kind for compromise in found.compromises] == [Kind.CONTEXT]
    assert f"{found.context_tokens:,} tokens instead of the usual 32,768" in found.compromises[0].text


def test_before_that_windows_get_small_where_the_model_has_windows(models):
    sizes = models["gemma3"]
    whole = memory_plan(sizes, Choice(shape(USUAL_CONTEXT, sizes))).total_bytes
    found = fit(sizes, Budget(whole - 1), shape)
    assert found.context_tokens == USUAL_CONTEXT
    assert not found.plan.choice.kv.full_window
    assert [compromise.kind for compromise in found.compromises] == [Kind.WINDOW]
    assert "7 answers at once" in found.compromises[0].text


def test_then_keys_and_values_get_eight_bits(models):
    sizes = models["phi3"]
    found = fit(sizes, Budget(_smallest_bytes(sizes) - 100_000), shape)
    assert found.fits
    assert found.plan.choice.kv.type is KvType.Q8_0
    assert [compromise.kind for compromise in found.compromises] == [Kind.CONTEXT, Kind.KV_TYPE]
    assert "can cost quality" in found.compromises[1].text


def test_a_type_that_heads_cannot_be_stored_in_is_not_taken(models):
    sizes = replace(models["llama"], kept=replace(models["llama"].kept, head_elements=(80,)))
    found = fit(sizes, Budget(8 << 30), shape, Wish(SMALL_CONTEXT, KvType.Q8_0))
    assert found.plan.choice.kv.type is KvType.F16
    (compromise,) = found.compromises
    assert compromise.kind is Kind.KV_TYPE
    assert "q8_0 needs heads of a multiple of 32, and they have 80" in compromise.text


def test_then_experts_and_then_layers_stay_in_ram(models):
    sizes = models["qwen3moe"]
    gpu = (Gpu("GPU0", 1.0),)
    layers = len(sizes.layers)
    all_there = _smallest_bytes(sizes, gpu_layers=layers + 1, gpus=gpu)
    roomy = Budget(8 << 30, (("GPU0", all_there - 3 * sizes.layers[0].experts // 2),))
    found = fit(sizes, roomy, shape, Wish(context_tokens=SMALL_CONTEXT, kv_type=KvType.F16))
    assert found.plan.choice.cpu_expert_layers == 2
    assert found.plan.choice.gpu_layers == layers + 1
    assert Kind.EXPERTS in {compromise.kind for compromise in found.compromises}
    tight = Budget(8 << 30, (("GPU0", 8 * MIB),))
    found = fit(sizes, tight, shape, Wish(context_tokens=SMALL_CONTEXT, kv_type=KvType.F16))
    assert found.fits
    assert found.plan.choice.gpu_layers < layers + 1
    assert Kind.LAYERS in {compromise.kind for compromise in found.compromises}


def test_where_nothing_fits_it_is_said_by_how_much(models):
    sizes = models["llama"]
    found = fit(sizes, Budget(10 * MIB), shape)
    assert not found.fits
    assert found.context_tokens == SMALL_CONTEXT
    assert found.lacking == ((RAM, found.plan.total_bytes - 10 * MIB),)


def test_the_largest_context_is_the_last_that_fits(models):
    sizes = models["llama"]
    budget = Budget(_smallest_bytes(sizes) + 10 * MIB)
    found = largest_context(sizes, budget, shape, fit(sizes, budget, shape))
    assert found % 256 == 0
    assert memory_plan(sizes, Choice(shape(found, sizes))).total_bytes <= budget.ram_bytes
    assert memory_plan(sizes, Choice(shape(found + 256, sizes))).total_bytes > budget.ram_bytes
    assert largest_context(sizes, Budget(MIB), shape, fit(sizes, Budget(MIB), shape)) == 0


def test_the_largest_context_is_that_of_the_places_that_were_chosen(models):
    sizes = models["llama"]
    crowded = Budget(8 << 30, (("CUDA0", 0),))
    found = fit(sizes, crowded, shape)
    assert found.plan.choice.gpu_layers == 0
    assert largest_context(sizes, crowded, shape, found) == 1 << 17


def test_a_draft_model_takes_its_room_from_the_first_ones_context(models):
    sizes = models["llama"]
    budget = Budget(memory_plan(sizes, Choice(shape(USUAL_CONTEXT, sizes))).total_bytes)
    assert fit(sizes, budget, shape).context_tokens == USUAL_CONTEXT
    both = fit(sizes, budget, shape, Wish(draft=sizes))
    alone = memory_plan(sizes, both.plan.choice)
    assert both.fits
    assert both.context_tokens < USUAL_CONTEXT
    assert both.plan.ram.kv_bytes == 2 * alone.ram.kv_bytes
    assert largest_context(sizes, budget, shape, both, sizes) == both.context_tokens
    assert largest_context(sizes, budget, shape, both) > both.context_tokens


@given(
    name=st.sampled_from(sorted(ZOO)),
    ram=st.integers(40 * MIB, 400 * MIB),
    gpus=st.lists(st.integers(MIB, 200 * MIB), max_size=2),
    context=st.none() | st.integers(300, 1 << 17),
    kv_type=st.none() | st.sampled_from(KvType),
    draft=st.none() | st.sampled_from(sorted(ZOO)),
)
@settings(max_examples=800, deadline=None)
def test_nothing_that_is_called_fitting_exceeds_its_budget(models, name, ram, gpus, context, kv_type, draft):
    sizes = models[name]
    budget = Budget(ram, tuple((f"GPU{number}", free) for number, free in enumerate(gpus)))
    found = fit(sizes, budget, shape, Wish(context, kv_type, draft=None if draft is None else models[draft]))
    needs = {need.device: need.total_bytes for need in found.plan.devices}
    allowed = {RAM: ram, **dict(budget.gpus)}
    over = {device: need - allowed[device] for device, need in needs.items() if need > allowed[device]}
    assert found.fits == (not over)
    assert dict(found.lacking) == over
    assert found.context_tokens <= found.wanted_context


def test_the_budget_is_used_where_the_model_could_use_it(models):
    choose = random.Random(1)
    for _ in range(200):
        sizes = models[choose.choice(["llama", "qwen3", "phi3", "olmo2"])]
        needed = _smallest_bytes(sizes)
        whole = memory_plan(sizes, Choice(shape(1 << 17, sizes))).total_bytes
        budget = choose.randrange(needed, whole)
        found = fit(sizes, Budget(budget), shape, Wish(context_tokens=1 << 17))
        assert USED_SHARE * budget <= found.plan.total_bytes <= budget


def test_what_a_gpu_takes_of_the_ram_counts_there(models):
    sizes = models["llama"]
    wish = Wish(context_tokens=SMALL_CONTEXT, kv_type=KvType.F16)
    enough = 200 * MIB
    apart = fit(sizes, Budget(enough, (("GPU0", enough),)), shape, wish)
    assert apart.fits
    needed = apart.plan.total_bytes
    assert needed > apart.plan.ram.total_bytes
    shared = Budget(needed - 1, (("GPU0", enough),), frozenset({"GPU0"}))
    assert shared.excess(apart.plan) == ((RAM, 1),)
    assert fit(sizes, Budget(needed, shared.gpus, shared.sharing), shape, wish).plan == apart.plan
