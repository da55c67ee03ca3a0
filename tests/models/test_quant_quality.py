import pytest
from headers import header_of

from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.quant_quality import (
    FILE_TYPES,
    LOSS_NATS,
    bits_per_weight,
    expected_loss_nats,
    loss_text,
    mix_name,
)

MIXED = {"a": ("Q4_K", (256, 3)), "b": ("Q6_K", (256, 1)), "c": ("F32", (16,))}


def test_the_file_says_what_its_mix_is_called():
    assert mix_name([header_of(MIXED, general__file_type=15)]) == "Q4_K_M"


@pytest.mark.parametrize("said", [{}, {"general__file_type": 1024 + 15}, {"general__file_type": 999}])
def test_else_it_is_called_by_the_type_of_most_weights(said):
    assert mix_name([header_of(MIXED, **said)]) == "Q4_K"


def test_all_files_of_a_model_count():
    more = header_of({"d": ("Q6_K", (256, 3))})
    assert mix_name([header_of(MIXED), more]) == "Q6_K"
    bits = 8 * (3 * 144 + 4 * 210 + 16 * 4)
    assert bits_per_weight([header_of(MIXED), more]) == bits / (3 * 256 + 4 * 256 + 16)


def test_a_file_without_weights_has_no_bits():
    assert bits_per_weight([header_of({})]) == 0
    assert mix_name([header_of({})]) == "no weights"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Q4_K_M", "about 0.03 nats"),
        ("Q4_0", "about 0.07 nats"),
        ("Q8_0", "about 0.001 nats"),
        ("IQ1_S", "about 2 nats"),
        ("BF16", "no loss"),
        ("MXFP4", "loss not known"),
    ],
)
def test_a_few_words_about_quality(name, text):
    assert loss_text(name) == text


def test_fewer_bits_of_a_kind_lose_more():
    for kinds in ("Q8_0 Q6_K Q5_K_M Q4_K_M Q3_K_M Q2_K", "Q5_1 Q5_0 Q4_1 Q4_0", "IQ4_NL IQ3_M IQ2_M IQ1_M IQ1_S"):
        losses = [expected_loss_nats(name) for name in kinds.split()]
        assert losses == sorted(losses)


def test_losses_are_of_mixes_that_there_are():
    assert set(LOSS_NATS) <= set(FILE_TYPES.values())
    named_like_a_type = {name for name in FILE_TYPES.values() if name.count("_") < 2 and name not in TYPES_BY_NAME}
    assert named_like_a_type == {"IQ2_M", "IQ3_M", "IQ3_XS"}  # mixes of several types
