import math
from dataclasses import dataclass

import msgspec
import pytest

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.request import GenerateRequest, SamplingParams, Text, Tokens

VOCAB = 260
HUGE = [2**31, 2**32, 2**63, 2**64]
NOT_FINITE = [math.nan, math.inf, -math.inf]


@dataclass(frozen=True)
class Bounds:
    field: str
    accepted: tuple
    refused: tuple


SAMPLING = [
    Bounds("temperature", (0, 0.5, 100), (-0.1, 100.1)),
    Bounds("top_k", (0, 1, 2**31 - 1), (-1, *HUGE)),
    Bounds("top_p", (0, 1), (-0.1, math.nan, 1.01)),
    Bounds("min_p", (0, 0.5, 1), (-0.1, 1.01)),
    Bounds("typical_p", (0, 1), (-0.1, math.nan, 1.01)),
    Bounds("repeat_penalty", (0.5, 1, 100), (0, -1, 100.1)),
    Bounds("repeat_last_n", (0, 64, 2**20), (-1, 2**20 + 1, *HUGE)),
    Bounds("presence_penalty", (-2, 0, 2), (-2.1, 2.1)),
    Bounds("frequency_penalty", (-2, 0, 2), (-2.1, 2.1)),
    Bounds("seed", (None, 0, 2**32 - 2), (-1, 2**32 - 1, 2**32, 2**63)),
    Bounds("logit_bias", ((), ((0, -100.0), (VOCAB - 1, 100.0)), tuple((7, 1.0) for _ in range(1024))), ()),
]
REQUEST = [
    Bounds("max_tokens", (None, 1, 8192), (0, -1)),
    Bounds("conversation", (None, "x", "é" * 128), ("", "x" * 129)),
    Bounds("stop", ((), ("x",) * 16, ("é" * 128,)), (("",), ("a", ""), ("x",) * 18, ("x" * 257,), ("é" * 129,))),
    Bounds("logprobs", (None, 0, 20), (-1, 21, 10**6, *HUGE)),
    Bounds("prompt", ((), (Tokens((0, VOCAB - 1)),), (Text("\ud800"),)), ()),
]


def values(bounds, side):
    return [
        pytest.param(bound.field, value, id=f"{bound.field}-{str(value)[:20]}")
        for bound in bounds
        for value in getattr(bound, side)
    ]


def request(**fields):
    return msgspec.structs.replace(GenerateRequest("r", (Text("hi"),)), **fields)


def refused(checked, field):
    with pytest.raises(InvalidRequestError, match=rf"^{field}\b") as caught:
        checked(VOCAB)
    return str(caught.value)


@pytest.mark.parametrize(("field", "value"), values(SAMPLING, "accepted"))
def test_sampling_value_in_range_is_accepted(field, value):
    params = SamplingParams(**{field: value})
    assert params.checked(VOCAB) is params


@pytest.mark.parametrize(("field", "value"), values(SAMPLING, "refused"))
def test_sampling_value_out_of_range_is_refused_by_name(field, value):
    assert repr(value) in refused(SamplingParams(**{field: value}).checked, field)


@pytest.mark.parametrize("value", NOT_FINITE, ids=str)
@pytest.mark.parametrize("field", [name for name, hint in SamplingParams.__annotations__.items() if hint is float])
def test_sampling_value_that_is_not_finite_is_refused_by_name(field, value):
    refused(SamplingParams(**{field: value}).checked, field)


@pytest.mark.parametrize("token", [-1, VOCAB, *HUGE, -(2**31)])
def test_bias_for_a_token_outside_the_vocabulary_is_refused(token):
    refused(SamplingParams(logit_bias=((0, 1.0), (token, 1.0))).checked, "logit_bias")


@pytest.mark.parametrize("bias", [*NOT_FINITE, -100.1, 100.1], ids=str)
def test_bias_out_of_range_is_refused(bias):
    refused(SamplingParams(logit_bias=((0, 1.0), (1, bias))).checked, "logit_bias")


def test_too_many_biases_are_refused():
    refused(SamplingParams(logit_bias=tuple((7, 1.0) for _ in range(1025))).checked, "logit_bias")


@pytest.mark.parametrize(("field", "value"), values(REQUEST, "accepted"))
def test_request_value_in_range_is_accepted(field, value):
    wanted = request(**{field: value})
    assert wanted.checked(VOCAB) is wanted


@pytest.mark.parametrize(("field", "value"), values(REQUEST, "refused"))
def test_request_value_out_of_range_is_refused_by_name(field, value):
    refused(request(**{field: value}).checked, field)


@pytest.mark.parametrize("token", [-1, VOCAB, *HUGE])
def test_prompt_token_outside_the_vocabulary_is_refused(token):
    refused(request(prompt=(Text("hi"), Tokens((0, token)))).checked, "prompt")


def test_a_request_s_sampling_is_checked_with_it():
    refused(request(sampling=SamplingParams(top_p=math.nan)).checked, "top_p")


@pytest.mark.parametrize("value", HUGE)
def test_huge_max_tokens_is_refused(value):
    refused(request(max_tokens=value).checked, "max_tokens")


@pytest.mark.parametrize("stop", ["\ud800", "a\udc80"])
def test_stop_with_half_a_surrogate_pair_is_refused(stop):
    refused(request(stop=(stop,)).checked, "stop")


def test_stop_with_nul_is_refused():
    refused(request(stop=("a\0",)).checked, "stop")


def test_refusing_an_enormous_stop_string_does_not_repeat_it():
    assert len(refused(request(stop=("x" * (1 << 20),)).checked, "stop")) < 2000


@pytest.mark.parametrize("field", ["temperature", "repeat_penalty"])
@pytest.mark.parametrize("value", [1e-50, 1e-40, 1e-38])
def test_value_too_small_to_divide_logits_by_is_refused(field, value):
    refused(SamplingParams(**{field: value}).checked, field)
