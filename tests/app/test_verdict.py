"""What is said of a model before it is loaded."""

import re

import msgspec
import pytest
from architecture_zoo import ZOO

from pinyon.app.counted import memory
from pinyon.app.fit import budget, headroom_bytes, layout, remedy, sizes_here
from pinyon.app.settings import Settings
from pinyon.app.verdict import Here, leaving_for, verdict, verdict_of_sibling, with_alternatives
from pinyon.engine.context_shape import MAX_STATEFUL_SEQUENCES, SEQUENCE_IDS
from pinyon.models.gguf_header import read_header
from pinyon.models.machine.devices import Gpu
from pinyon.models.machine.ram import Ram
from pinyon.models.machine.weight_speed import ROWS, Computer, WeightSpeed
from pinyon.models.memory.fit import Budget, Fit, Wish, fit
from pinyon.models.memory.kv import KvChoice, KvType
from pinyon.models.memory.plan import RAM, Choice, DeviceNeed, MemoryPlan
from pinyon.models.speed_prediction import predicted_speed

GIB, MIB = 1 << 30, 1 << 20
COSTS = tuple(1e-11 * rows**0.5 for rows in ROWS)
MEASURED = WeightSpeed(
    Computer("b", 2, "c"), ROWS, (1e-6,) * len(ROWS), (0.0,) * len(ROWS), {"F32": COSTS, "Q4_K": COSTS}
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return (read_header(ZOO["llama"](128).write(tmp_path_factory.mktemp("verdict") / "llama.gguf")),)


def test_a_model_that_fits(llama):
    here = Here(Budget(GIB), MEASURED)
    found = verdict("tiny", llama, sizes_here(llama), here, Wish())
    assert (found.fits, found.context_tokens, found.largest_context) == (True, 4096, 4096)
    assert (found.quantization, found.quality, found.bits_per_weight) == ("F32", "no loss", 32.0)
    assert found.speed == predicted_speed(llama, MEASURED)
    assert found.size_bytes == llama[0].file_bytes
    (share,) = found.devices
    assert (share.device, share.budget_bytes) == (RAM, GIB)
    assert share.weights_bytes == sizes_here(llama).weights_bytes
    assert (found.compromises, found.remedy) == ((), "")


def test_a_model_that_does_not_fit_says_what_is_lacking(llama):
    found = verdict("tiny", llama, sizes_here(llama), Here(Budget(20 * MIB)), Wish())
    assert not found.fits
    assert re.fullmatch(
        r"needs [56]\d MiB, 20 MiB are free for it: [34]\d MiB more would have to be free for 4,096 tokens of context",
        found.remedy,
    )
    assert found.largest_context == 0
    assert found.speed is None


def test_how_small_the_weights_would_have_to_be(llama):
    sizes, wish = sizes_here(llama), Wish(context_tokens=4096, kv_type=KvType.F16)
    (whole,) = verdict("tiny", llama, sizes, Here(Budget(GIB)), wish).devices
    needed = whole.weights_bytes + whole.kv_bytes + whole.other_bytes
    found = verdict("tiny", llama, sizes, Here(Budget(needed - whole.weights_bytes // 4)), wish)
    most, now = memory(whole.weights_bytes - whole.weights_bytes // 4), memory(whole.weights_bytes)
    assert found.remedy.endswith(f", or weights of at most {most} taken instead of {now}")


def test_what_a_gpu_lacks_is_told_by_its_name(llama):
    gpus = (("CUDA0", 12 * GIB),)
    plan = MemoryPlan(
        Choice(KvChoice(4096, 1, 1)), (DeviceNeed(RAM), DeviceNeed("CUDA0", 10 * GIB, 0, 5 * GIB)), is_exact=True
    )
    assert remedy(Fit(plan, 4096, (), (("CUDA0", 3 * GIB),)), Budget(GIB, gpus)) == (
        "needs 15.0 GiB of CUDA0, 12.0 GiB of CUDA0 are free for it: 3.0 GiB more would have to be free for 4,096 tokens of context,"
        " or weights of at most 7.0 GiB taken instead of 10.0 GiB"
    )
    assert remedy(Fit(plan, 4096), Budget(GIB, gpus)) == ""


def test_another_quantisation_is_told_by_its_size(llama):
    sizes, here = sizes_here(llama), Here(Budget(GIB), MEASURED)
    quarter = llama[0].data_offset + sizes.weights_bytes // 4
    found = verdict_of_sibling("Q8", "Q4_K_M", quarter, (llama, sizes), here, Wish())
    assert found.devices[0].weights_bytes == pytest.approx(sizes.weights_bytes / 4, rel=0.001)
    assert found.bits_per_weight == pytest.approx(8.0, rel=0.01)
    assert (found.loss_nats, found.quality) == (0.031273, "about 0.03 nats")
    assert found.speed is not None
    assert not found.is_exact


@pytest.mark.parametrize(
    ("most", "beside", "loaded", "leaving"),
    [
        (GIB, 20 * MIB, ("a", "b"), ("a", "b")),
        (GIB, GIB // 2, ("a", "b"), ()),
        (20 * MIB, 10 * MIB, ("a", "b"), ()),
        (GIB, 20 * MIB, ("tiny",), ()),
    ],
    ids=["needed", "fits beside them", "fits nowhere", "it is the one"],
)
def test_who_would_leave_memory(llama, most, beside, loaded, leaving):
    here = Here(Budget(most), None, Budget(beside), loaded)
    assert leaving_for("tiny", sizes_here(llama), here, Wish()) == leaving
    assert leaving_for("tiny", sizes_here(llama), Here(Budget(most)), Wish()) == ()


def test_a_model_leaves_also_so_that_nothing_has_to_be_given_up(llama):
    sizes = sizes_here(llama)
    (whole,) = verdict("tiny", llama, sizes, Here(Budget(GIB)), Wish(4096, KvType.F16)).devices
    less = Budget(whole.weights_bytes + whole.kv_bytes + whole.other_bytes - 1)
    assert fit(sizes, less, layout).fits
    assert leaving_for("tiny", sizes, Here(Budget(GIB), None, less, ("a",)), Wish()) == ("a",)


def test_what_does_not_fit_is_sent_to_the_largest_that_does(llama):
    sizes, here = sizes_here(llama), Here(Budget(GIB))
    small = verdict("S", llama, sizes, here, Wish())
    middle = msgspec.structs.replace(small, name="M", quantization="Q4_K_M", size_bytes=small.size_bytes + 1)
    large = msgspec.structs.replace(middle, name="L", size_bytes=1 << 40, fits=False, remedy="needs much")
    assert [each.remedy for each in with_alternatives([small, middle, large])] == [
        "",
        "",
        "needs much: Q4_K_M of the same model fits, with 4,096 tokens of context",
    ]
    assert with_alternatives([large]) == [large]


def test_the_budget_leaves_headroom_on_each_device():
    ram = Ram(64 * GIB, "", None, "", 20 * GIB, "")
    gpus = (Gpu("CUDA0", "", 10 * GIB, 12 * GIB, shares_ram=False), Gpu("MTL0", "", GIB, 5 * GIB, shares_ram=True))
    found = budget(Settings(), ram, gpus)
    assert found.ram_bytes == 19 * GIB
    assert found.gpus == (("CUDA0", 9 * GIB), ("MTL0", GIB - int(0.5 * GIB)))
    assert found.sharing == frozenset({"MTL0"})
    asked = budget(Settings(headroom_mib={"RAM": 100, "CUDA0": 20 * 1024}), ram, gpus)
    assert asked.ram_bytes == 20 * GIB - 100 * MIB
    assert asked.gpus[0] == ("CUDA0", 0)


def test_a_container_s_limit_decides_over_headroom():
    limited = Ram(64 * GIB, "", 2 * GIB, "", GIB, "")
    assert budget(Settings(), limited).ram_bytes == GIB - int(0.2 * GIB)
    assert headroom_bytes(Settings(), RAM, 2 * GIB) == int(0.2 * GIB)


def test_the_layout_is_the_engine_s(tmp_path):
    sizes = {
        name: sizes_here((read_header(ZOO[name](128).write(tmp_path / name)),)) for name in ("llama", "jamba", "gemma3")
    }
    assert layout(4096, sizes["llama"], True).sequences == SEQUENCE_IDS
    assert layout(4096, sizes["jamba"], True).sequences == MAX_STATEFUL_SEQUENCES
    small = layout(4096, sizes["gemma3"], False)
    assert (small.full_window, small.sequences) == (False, MAX_STATEFUL_SEQUENCES)
    assert layout(900, sizes["gemma3"], False).full_window
