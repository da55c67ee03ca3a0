from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.errors import NativeError
from pinyon.engine.native import Candidates, SamplerChain
from pinyon.engine.request import MIN_DIVISOR, SamplingParams
from pinyon.engine.sampler import Sampler

VOCAB = 12
CONTEXT = 4096
A, B = 3, 7
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Draws from the model's own distribution."""
GREEDY = {"temperature": 0.0}
DRAWS = 4000


def sampler(prompt=(), candidates=None, **params):
    return Sampler(SamplingParams(**params), candidates or Candidates(VOCAB), VOCAB, CONTEXT, prompt)


def logits(**peaks):
    """Zeros with logits for A and B."""
    row = np.zeros(VOCAB, np.float32)
    row[A], row[B] = peaks.get("a", 0), peaks.get("b", 0)
    return row


def spread(seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, VOCAB).astype(np.float32)


def draws(params, row, count=DRAWS, seed=1):
    chosen = sampler(seed=seed, **params)
    return [chosen.choose(row) for _ in range(count)]


# Greedy


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=VOCAB, max_size=VOCAB))
def test_temperature_zero_is_the_argmax(row):
    row = np.array(row, np.float32)
    assert sampler(**GREEDY).choose(row) == int(np.argmax(row))
    assert sampler(top_k=1, top_p=0.1, **GREEDY).choose(row) == int(np.argmax(row))


@pytest.mark.parametrize(
    "params", [{**OPEN, "top_k": 1}, {**OPEN, "top_p": 1e-6}, {**OPEN, "top_p": 0.0}, {**OPEN, "min_p": 1.0}]
)
def test_filters_that_leave_one_token_give_the_argmax(params):
    row = spread()
    assert set(draws(params, row, 50)) == {int(np.argmax(row))}


# Distribution


@dataclass(frozen=True)
class Reference:
    """The distribution that the parameters promise, in numpy, in the documented order."""

    temperature: float = 1.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0

    def probabilities(self, row):
        kept = np.ones(len(row), bool)
        if self.top_k:
            kept &= row >= np.sort(row)[-self.top_k :][0]
        if self.typical_p < 1:
            kept &= self._typical(self._softmax(row, kept))
        if self.top_p < 1:
            kept &= self._nucleus(self._softmax(row, kept))
        if self.min_p:
            probabilities = self._softmax(row, kept)
            kept &= probabilities >= self.min_p * probabilities.max()
        return self._softmax(row / self.temperature, kept)

    @staticmethod
    def _softmax(row, kept):
        weights = np.where(kept, np.exp(row - row.max(), dtype=np.float64), 0)
        return weights / weights.sum()

    def _nucleus(self, probabilities):
        order = np.argsort(-probabilities)
        count = 1 + int(np.searchsorted(np.cumsum(probabilities[order]), self.top_p))
        return np.isin(np.arange(len(probabilities)), order[:count])

    def _typical(self, probabilities):
        surprise = -np.log(np.maximum(probabilities, 1e-300))
        distance = np.abs(surprise - (probabilities * surprise).sum())
        order = np.argsort(np.where(probabilities > 0, distance, np.inf))
        count = 1 + int(np.searchsorted(np.cumsum(probabilities[order]), self.typical_p))
        return np.isin(np.arange(len(probabilities)), order[:count])


def follows(chosen, probabilities):
    """Chi-square test; the limit is passed by chance less than once in 10,000 times."""
    counts = np.bincount(chosen, minlength=len(probabilities))
    if counts[probabilities == 0].any():
        return False
    expected = probabilities[probabilities > 0] * len(chosen)
    statistic = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    degrees = len(expected) - 1
    return statistic <= degrees + 6 * np.sqrt(2 * degrees) + 6


DISTRIBUTIONS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 2**31 - 1},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"min_p": 0.3},
    {"typical_p": 0.6},
    {"temperature": 0.8, "top_k": 8, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 6, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9},
]


@pytest.mark.parametrize("params", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("row_seed", [0, 1])
def test_draws_follow_the_promised_distribution(params, row_seed):
    row = spread(row_seed)
    assert follows(draws(OPEN | params, row), Reference(**params).probabilities(row))


@pytest.mark.parametrize(
    ("used", "promised"),
    [
        ({"temperature": 1.2}, {}),
        ({"top_k": 5}, {"top_k": 4}),
        ({"top_p": 0.9}, {"top_p": 0.7}),
        ({"min_p": 0.05}, {"min_p": 0.3}),
        ({"typical_p": 0.6}, {}),
    ],
)
def test_the_comparison_catches_another_distribution(used, promised):
    row = spread()
    assert not follows(draws(OPEN | used, row), Reference(**promised).probabilities(row))


def test_filters_come_before_the_temperature():
    row = spread()
    chosen = draws(OPEN | {"temperature": 3.0, "top_p": 0.8}, row)
    assert set(chosen) == set(np.flatnonzero(Reference(top_p=0.8).probabilities(row)))


# Seeds


def test_a_seed_gives_the_same_tokens_and_another_seed_others():
    assert draws(OPEN, spread(), 60, seed=42) == draws(OPEN, spread(), 60, seed=42)
    assert draws(OPEN, spread(), 60, seed=42) != draws(OPEN, spread(), 60, seed=43)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 2])
def test_seeds_at_the_ends_of_the_range_are_reproducible(seed):
    assert draws(OPEN, spread(), 60, seed=seed) == draws(OPEN, spread(), 60, seed=seed)


def test_draws_do_not_depend_on_other_samplers_that_share_the_candidates():
    shared = Candidates(VOCAB)
    first, other = sampler(candidates=shared, seed=42, **OPEN), sampler(candidates=shared, seed=7, top_k=3)
    interleaved = []
    for _ in range(60):
        interleaved.append(first.choose(spread()))
        other.choose(spread(1))
    assert interleaved == draws(OPEN, spread(), 60, seed=42)


def test_unseeded_samplers_differ_and_report_the_seed_that_repeats_them():
    one, other = sampler(**OPEN), sampler(**OPEN)
    tokens = [one.choose(spread()) for _ in range(60)]
    assert one.seed != other.seed
    assert tokens == draws(OPEN, spread(), 60, seed=one.seed)


# Penalties and bias


def test_repeat_penalty_counts_the_prompt():
    row = logits(a=10, b=9)
    assert sampler([A], repeat_penalty=2.0, **GREEDY).choose(row) == B
    assert sampler([], repeat_penalty=2.0, **GREEDY).choose(row) == A


def test_repeat_penalty_counts_the_output():
    penalised = sampler(repeat_penalty=2.0, **GREEDY)
    assert [penalised.choose(logits(a=10, b=9)) for _ in range(3)] == [A, B, A]


def test_repeat_penalty_raises_the_distance_of_negative_logits():
    row = np.full(VOCAB, -30, np.float32)
    row[A], row[B] = -9, -10
    assert sampler([A], repeat_penalty=2.0, **GREEDY).choose(row) == B


@pytest.mark.parametrize(("since", "seen"), [(63, True), (64, False), (200, False)])
def test_repeat_penalty_sees_the_last_64_tokens_of_the_prompt(since, seen):
    prompt = [A, *[0] * since]
    assert sampler(prompt, repeat_penalty=2.0, **GREEDY).choose(logits(a=10, b=9)) == (B if seen else A)


@pytest.mark.parametrize(("since", "seen"), [(63, True), (64, False)])
def test_repeat_penalty_forgets_what_64_tokens_of_output_have_displaced(since, seen):
    penalised = sampler([A], repeat_penalty=2.0, **GREEDY)
    other = np.zeros(VOCAB, np.float32)
    other[0] = 100
    for _ in range(since):
        penalised.choose(other)
    assert penalised.choose(logits(a=10, b=9)) == (B if seen else A)


def test_repeat_penalty_over_no_tokens_is_off():
    assert sampler([A], repeat_penalty=2.0, repeat_last_n=0, **GREEDY).choose(logits(a=10, b=9)) == A


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_count_the_output_and_not_the_prompt(penalty):
    penalised = sampler([A] * 8, **{penalty: 2.0}, **GREEDY)
    assert [penalised.choose(logits(a=10, b=9)) for _ in range(2)] == [A, B]


def test_presence_is_taken_once_and_frequency_each_time():
    once, each = sampler(presence_penalty=1.0, **GREEDY), sampler(frequency_penalty=1.0, **GREEDY)
    assert [once.choose(logits(a=10, b=8.5)) for _ in range(4)] == [A, A, A, A]
    assert [each.choose(logits(a=10, b=8.5)) for _ in range(4)] == [A, A, B, A]


def test_negative_presence_keeps_what_was_said():
    keeps = sampler(presence_penalty=-2.0, **GREEDY)
    assert [keeps.choose(row) for row in (logits(a=10, b=9), logits(a=9, b=10))] == [A, A]


def test_frequency_penalty_reaches_further_back_than_64_tokens():
    penalised = sampler(frequency_penalty=2.0, **GREEDY)
    penalised.choose(logits(a=10))
    other = np.zeros(VOCAB, np.float32)
    for step in range(200):
        other[0] = 1000 + step
        penalised.choose(other)
    assert penalised.choose(logits(a=10, b=9)) == B


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_s_history_is_a_few_megabytes_at_most(penalty, monkeypatch):
    lengths = []
    monkeypatch.setattr(SamplerChain, "add_penalties", lambda _chain, _vocab, last_n, **_: lengths.append(last_n))
    sampler(**{penalty: 1.0})
    assert max(lengths) <= 2**20


@pytest.mark.parametrize(
    "neutral",
    [
        {"repeat_penalty": 1.0},
        {"repeat_penalty": 1.5, "repeat_last_n": 0},
        {"presence_penalty": 0.0, "frequency_penalty": 0.0},
        {"logit_bias": ((A, 0.0),)},
        {"typical_p": 1.0},
    ],
    ids=str,
)
def test_neutral_values_change_nothing(neutral):
    prompt = [A, B, A]
    plain, changed = sampler(prompt, seed=5, **OPEN), sampler(prompt, seed=5, **(OPEN | neutral))
    row = spread()
    assert [plain.choose(row) for _ in range(200)] == [changed.choose(row) for _ in range(200)]


@pytest.mark.parametrize("params", [GREEDY, OPEN, {}], ids=["greedy", "open", "defaults"])
def test_a_bias_of_100_forces_a_token_and_of_minus_100_bans_it(params):
    row = spread()
    best, worst = int(row.argmax()), int(row.argmin())
    assert set(draws(params | {"logit_bias": ((worst, 100.0),)}, row, 300)) == {worst}
    assert best not in draws(params | {"logit_bias": ((best, -100.0),)}, row, 300)


def test_a_bias_is_added_to_the_logit():
    assert sampler(logit_bias=((B, 0.9),), **GREEDY).choose(logits(a=10, b=9)) == A
    assert sampler(logit_bias=((B, 1.1),), **GREEDY).choose(logits(a=10, b=9)) == B


# Damaged logits


@pytest.mark.parametrize("params", [GREEDY, OPEN, {"logit_bias": ((A, -100.0),)}], ids=["greedy", "open", "bias"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, A, VOCAB - 1])
def test_nan_and_infinity_are_errors(params, value, position):
    row = spread()
    row[position] = value
    with pytest.raises(NativeError, match=str(value)):
        sampler(**params).choose(row)


def test_only_minus_infinities_are_an_error():
    with pytest.raises(NativeError, match="-inf"):
        sampler().choose(np.full(VOCAB, -np.inf, np.float32))


def test_tokens_of_minus_infinity_are_never_drawn():
    row = np.full(VOCAB, -np.inf, np.float32)
    row[A] = row[B] = 1
    assert set(draws(OPEN, row, 300)) == {A, B}


def test_the_smallest_temperature_allowed_draws_the_likeliest_token():
    assert set(draws(OPEN | {"temperature": MIN_DIVISOR}, logits(a=10, b=9), 20)) == {A}
