import msgspec
import pytest
from headers import header_of

from pinyon.models.gguf_header import GgufHeader
from pinyon.models.machine.weight_speed import ROWS, Computer, WeightSpeed
from pinyon.models.speed_prediction import FasterType, much_faster_type, predicted_speed

SLOW = (1e-9, 4e-9, 8e-9, 16e-9, 64e-9)
"""Seconds for a weight: in proportion to the rows."""
FAST = (1e-9, 1e-9, 2e-9, 4e-9, 16e-9)
SPEED = WeightSpeed(
    Computer("build", 2, "cpu"),
    ROWS,
    layer_s=(1e-6, 2e-6, 3e-6, 4e-6, 5e-6),
    width_s=(0.0, 0.0, 1e-9, 0.0, 1e-9),
    weight_s={"Q4_1": SLOW, "Q4_0": FAST, "Q8_0": SLOW, "F32": SLOW},
)
WITHOUT_LAYERS = msgspec.structs.replace(SPEED, layer_s=(0.0,) * len(ROWS), width_s=(0.0,) * len(ROWS))
WIDTH = 1000
BLOCKS = {"llama__block_count": 2, "llama__embedding_length": WIDTH}
DENSE = {
    "token_embd.weight": ("F32", (64, 1000)),
    "output.weight": ("Q8_0", (64, 1000)),
    "output_norm.weight": ("F32", (64,)),
    "blk.0.ffn_up.weight": ("Q4_0", (64, 100)),
    "blk.1.ffn_up.weight": ("Q4_1", (64, 50)),
    "blk.1.ffn_norm.weight": ("F32", (64,)),
    "blk.1.attn_q.bias": ("F32", (64, 2)),
}
Q4_0, Q4_1, OUTPUT = 6400, 3200, 64000
"""Weights of the matrices in it."""


def speeds(header: GgufHeader, speed: WeightSpeed = SPEED) -> tuple[float, float, float]:
    found = predicted_speed([header], speed)
    assert found is not None
    return found.decode_tokens_per_s, found.prefill_tokens_per_s, found.batch_tokens_per_s


def test_a_step_costs_its_weights_and_its_layers():
    one = Q4_0 * 1e-9 + Q4_1 * 1e-9 + OUTPUT * 1e-9 + 2 * 1e-6
    eight = Q4_0 * 2e-9 + Q4_1 * 8e-9 + OUTPUT * 8e-9 + 2 * (3e-6 + WIDTH * 1e-9)
    # 512 rows are 8 times 64; only the last one's logits are wanted.
    prompt = 8 * (Q4_0 * 16e-9 + Q4_1 * 64e-9 + 2 * (5e-6 + WIDTH * 1e-9)) + OUTPUT * 1e-9
    assert speeds(header_of(DENSE, **BLOCKS)) == pytest.approx((1 / one, 512 / prompt, 8 / eight))


def test_embeddings_are_looked_up_but_multiplied_where_they_are_the_output():
    embeddings = {"token_embd.weight": ("Q8_0", (64, 1000))}
    others = {name: tensor for name, tensor in DENSE.items() if name not in ("token_embd.weight", "output.weight")}
    untied = header_of(DENSE, **BLOCKS)
    tied = header_of(embeddings | others, **BLOCKS)
    looked_up = {
        "token_embd.weight": ("Q8_0", (64, 9000)),
        "position_embd.weight": ("F32", (64, 9000)),
        "token_types.weight": ("F32", (64, 2)),
        "per_layer_token_embd.weight": ("F32", (64, 9000)),
    }
    assert speeds(tied) == speeds(untied) == speeds(header_of(DENSE | looked_up, **BLOCKS))


def test_tensors_may_lie_in_several_files():
    first = header_of({name: DENSE[name] for name in list(DENSE)[:3]}, **BLOCKS)
    second = header_of({name: DENSE[name] for name in list(DENSE)[3:]})
    assert predicted_speed([first, second], SPEED) == predicted_speed([header_of(DENSE, **BLOCKS)], SPEED)


def test_each_row_uses_some_experts_and_more_rows_read_more_of_them():
    header = header_of(
        {"blk.0.ffn_up_exps.weight": ("Q8_0", (64, 10, 4)), "output.weight": ("Q4_0", (32, 1))},
        llama__block_count=1,
        llama__expert_count=4,
        llama__expert_used_count=2,
    )
    expert = 640
    # Half of the experts are not used by a row: of 8 rows, 1/256 of them by none. This type's cost is in proportion to the rows,
    # so what counts is how often an expert is used at all.
    one = 2 * expert * 1e-9 + 32e-9
    eight = 8 * 2 * expert * 1e-9 + 32 * 2e-9
    prompt = 512 * 2 * expert * 1e-9 + 32e-9
    assert speeds(header, WITHOUT_LAYERS) == pytest.approx((1 / one, 512 / prompt, 8 / eight))


def test_what_rows_share_is_read_once():
    experts = {"blk.0.ffn_up_exps.weight": ("Q4_0", (64, 10, 4))}
    header = header_of(experts, llama__block_count=1, llama__expert_count=4, llama__expert_used_count=1)
    # 8 rows use 4 x (1 - (3/4)^8) experts, 2.22 rows each: this type does up to 4 rows in the time of one.
    read = 4 * (1 - 0.75**8)
    assert 1 < 8 / read < 4
    assert speeds(header, WITHOUT_LAYERS)[2] == pytest.approx(8 / (read * 640 * 1e-9))


def test_between_two_measured_numbers_of_rows_costs_follow_a_power():
    header = header_of(
        {"blk.0.ffn_up_exps.weight": ("Q8_0", (64, 10, 3))},
        llama__block_count=1,
        llama__expert_count=3,
        llama__expert_used_count=3,
    )
    square = {"Q8_0": (1.0, 16.0, 64.0, 256.0, 4096.0)}
    speed = msgspec.structs.replace(WITHOUT_LAYERS, weight_s=square)
    assert speeds(header, speed)[2] == pytest.approx(8 / (3 * 640 * 64))
    half = msgspec.structs.replace(WITHOUT_LAYERS, weight_s={"Q8_0": (1.0, 16.0, 64.0, 256.0, 4096.0)})
    few = header_of(
        {"blk.0.ffn_up_exps.weight": ("Q8_0", (64, 10, 1000))},
        llama__block_count=1,
        llama__expert_count=1000,
        llama__expert_used_count=500,
    )
    read = 1000 * (1 - 0.5**8)
    assert speeds(few, half)[2] == pytest.approx(8 / (read * 640 * (8 * 500 / read) ** 2))


def test_layers_that_guess_further_tokens_are_not_used():
    plain = header_of(DENSE, **BLOCKS)
    guessing = header_of(
        {**DENSE, "blk.2.nextn.eh_proj.weight": ("Q8_0", (64, 9000)), "blk.2.ffn_up.weight": ("Q8_0", (64, 9000))},
        **BLOCKS | {"llama__block_count": 3, "llama__nextn_predict_layers": 1},
    )
    assert speeds(guessing) == speeds(plain)


def test_nothing_is_said_of_a_type_that_was_not_measured():
    assert predicted_speed([header_of(DENSE | {"blk.0.ffn_up.weight": ("NVFP4", (64, 1))}, **BLOCKS)], SPEED) is None
    assert much_faster_type([header_of(DENSE | {"blk.0.ffn_up.weight": ("NVFP4", (64, 1))}, **BLOCKS)], SPEED) is None
    unused = header_of(DENSE | {"token_embd.weight": ("NVFP4", (64, 1000))}, **BLOCKS)
    assert predicted_speed([unused], SPEED) is not None
    assert predicted_speed([header_of({}, **BLOCKS)], SPEED) is None


def model_of(type_name: str, row_length: int = 64, output: str = "Q8_0") -> GgufHeader:
    tensors = {
        "output.weight": (output, (64, 1)),
        "blk.0.ffn_up.weight": (type_name, (row_length, 1000)),
        "blk.0.ffn_gate_inp.weight": ("F32", (64, 1)),
    }
    return header_of(tensors, llama__block_count=1)


def test_a_much_faster_type_of_the_same_size_is_named():
    faster = much_faster_type([model_of("Q4_1")], WITHOUT_LAYERS)
    assert faster is not None
    assert (faster.name, round(faster.prefill, 1), round(faster.batch, 1)) == ("Q4_0", 4.0, 4.0)


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        (model_of("Q4_0"), {}),  # it is the fastest already
        (model_of("Q8_0"), {}),  # about twice as many bits
        (model_of("Q4_1"), {"Q4_0": tuple(0.7 * cost for cost in SLOW)}),  # faster, not much
        (model_of("Q4_1"), {"Q4_0": (1.2e-9, *FAST[1:])}),  # one client would wait longer
    ],
)
def test_no_type_is_named_for_little(file, changed):
    speed = msgspec.structs.replace(WITHOUT_LAYERS, weight_s={**WITHOUT_LAYERS.weight_s, **changed})
    assert much_faster_type([file], speed) is None


def test_rows_that_cannot_be_cut_into_blocks_keep_their_type():
    speed = msgspec.structs.replace(WITHOUT_LAYERS, weight_s={"Q4_1": SLOW, "F32": SLOW, "Q8_0": SLOW, "Q4_K": FAST})
    assert much_faster_type([model_of("Q4_1", row_length=256)], speed) == FasterType(
        "Q4_K", pytest.approx(4, rel=0.01), pytest.approx(4, rel=0.01)
    )
    assert much_faster_type([model_of("Q4_1", row_length=288)], speed) is None
