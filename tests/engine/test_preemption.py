"""Who gives way and goes on later ends as if nothing had happened, on a real model: KV by bytes, logits within what shapes explain."""

import os
import random

import msgspec
import numpy as np
import pytest
from dictation import Dictation, distances
from kv_bytes import KvWitness

from pinyon.engine.config import EngineConfig, Limits
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.engine.sequence import Sequence

REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 24, 16, 20
ROOMY, TIGHT = 1024, 288
"""All at once need 864 cells."""
RAM = 1 << 30
EVERY = 16
"""Of the logits, one in so many is compared."""


def drawn(dice, tokens):
    return tuple(dice.randrange(1000, 40_000) for _ in range(tokens))


ANSWERS = {f"{number}": drawn(random.Random(number), ANSWER_TOKENS) for number in range(REQUESTS)}


def requests():
    dice = random.Random(1)
    return [
        GenerateRequest(
            f"{number}",
            (Tokens(drawn(dice, PROMPT_TOKENS)),),
            SamplingParams(),
            ANSWER_TOKENS,
            ignore_eos=True,
        )
        for number in range(REQUESTS)
    ]


@pytest.fixture(scope="module")
def load(smollm2, tmp_path_factory):
    """Return a function that loads an engine with so many cells, and so many bytes for blocks in RAM."""
    loaded = []
    with (tmp_path_factory.mktemp("log") / "log").open("w") as log:

        def load(cells, ram_bytes):
            config = EngineConfig(os.fsencode(smollm2), 2, cells, ram_bytes, limits=Limits(long_share=1.0))
            loaded.append(load_engine(config, smollm2, NativeLog(log)))
            return loaded[-1]

        yield load
        for each in loaded:
            each.engine.close()
            each.close()


@pytest.fixture(scope="module")
def alone_and_noise(load):
    """Return what is seen alone, and how far from that the logits are where all have room beside one another."""
    engine = load(ROOMY, 0).engine
    dictation = Dictation(engine, ANSWERS, EVERY)
    apart = [msgspec.structs.replace(request, use_cache=False) for request in requests()]
    alone = {}
    for request in apart:
        alone |= dictation.take([request])
    together = dictation.take(apart)
    assert not engine.meters().service.preempted
    assert not dictation.failed
    return alone, distances(alone, together)


def answered(loaded):
    """Answer all of it where there is not room for all; return what was seen."""
    loaded.engine._scheduler._lengths._mean = 1.0  # admit as if answers were short
    dictation = Dictation(loaded.engine, ANSWERS, EVERY)
    seen = dictation.take(requests())
    assert loaded.engine.meters().service.preempted >= 4
    assert not dictation.failed
    return seen


def check_within(noise, found):
    """Check that logits are no further away than twice what the shapes of batches explain."""
    for share in (90, 100):
        assert np.percentile(found, share) <= 2 * np.percentile(noise, share)


@pytest.mark.parametrize("ram_bytes", [RAM, 0], ids=["brought back", "computed again"])
def test_24_requests_of_which_some_give_way_are_answered_as_without(load, alone_and_noise, ram_bytes):
    alone, noise = alone_and_noise
    loaded, witness = load(TIGHT, ram_bytes), KvWitness()
    witness.watch(loaded)
    seen = answered(loaded)
    witness.compare_all()
    assert (witness.hits["RAM"] > 0) == (ram_bytes > 0)
    check_within(noise, distances(alone, seen))


def go_on_from_another_text(self):
    self.leaf = self.restore = None
    self.tokens.reverse()


def test_the_comparison_notices_that_who_gives_way_goes_on_from_another_text(load, alone_and_noise, monkeypatch):
    monkeypatch.setattr(Sequence, "lose_cells", go_on_from_another_text)
    alone, noise = alone_and_noise
    seen = answered(load(TIGHT, 0))
    with pytest.raises(AssertionError):
        check_within(noise, distances(alone, seen))
