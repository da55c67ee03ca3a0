"""In the deterministic mode answers are the same to the last bit, whatever was cached and whoever asked before."""

import msgspec
import pytest
from asking import end_of, text_of
from conversation_trees import LONG_TREES, Clock, grow, open_engine
from watched_room import CONTEXT, OTHER, PROMPT

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.events import Chunk
from pinyon.engine.request import SamplingParams, Tokens

pytestmark = pytest.mark.model

BY_BITS = {"logprobs": 3}
"""Log probabilities tell what text does not: whether two computations had the same bits."""
DETERMINISTIC = {**BY_BITS, "deterministic": True}


def cached_tokens(answered):
    """Return how many tokens of the answered prompts were cached, by where."""
    reports = [end_of(asked.events).cache for asked in answered]
    return {tier: sum(getattr(report, tier) for report in reports) for tier in ("resident", "ram", "disk")}


def others_computed_afresh(model, folder, answered, context_tokens=CONTEXT):
    """Return which answers are not, to the last bit, those of an engine that keeps nothing."""
    loaded = open_engine(model, folder, Clock(), context_tokens=context_tokens, ram_blocks=0, disk_blocks=0)
    different = []
    for asked in answered:
        request = msgspec.structs.replace(
            asked.request, prompt=(Tokens(tuple(asked.prepared.prompt)),), use_cache=False
        )
        events = [event for _, event in loaded.engine.submit(loaded.engine.prepare(request))]
        while loaded.engine.busy:
            events += [event for _, event in loaded.engine.step()]
        assert end_of(events).cache.cached == 0
        if chunks_of(events) != chunks_of(asked.events):
            different.append(asked)
    loaded.engine.close()
    loaded.close()
    return different


def chunks_of(events):
    """Text, tokens and log probabilities."""
    return [event for event in events if isinstance(event, Chunk)]


def test_without_the_mode_bits_depend_on_what_was_cached_and_on_neighbours(tiny_llama, tmp_path):
    answered = grow(tiny_llama, tmp_path, trees=2, actions=30, fields=BY_BITS).answered
    assert others_computed_afresh(tiny_llama, tmp_path / "afresh", answered), "then nothing could be seen to differ"


def test_a_deterministic_answer_is_the_same_cached_or_not(tiny_model, tmp_path):
    answered = grow(tiny_model, tmp_path, trees=4, actions=30, fields=DETERMINISTIC).answered
    cached = cached_tokens(answered)
    assert min(cached["ram"], cached["disk"]) > 300, cached
    assert len({text_of(asked.events) for asked in answered}) > len(answered) / 2
    assert others_computed_afresh(tiny_model, tmp_path / "afresh", answered) == []


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_deterministic_answer_is_the_same_wherever_its_kv_comes_from(any_room, temperature):
    sampling = SamplingParams(temperature=temperature, seed=7)
    fields = {**DETERMINISTIC, "sampling": sampling, "max_tokens": 12, "ignore_eos": True}
    prompt = PROMPT[:190]
    first = chunks_of(any_room.events(prompt, **fields))
    assert any_room.witness.hits.total() == 0
    assert chunks_of(any_room.events(prompt, **fields)) == first, "asked again"
    assert chunks_of(any_room.events(prompt, **fields, use_cache=False)) == first, "without the cache"
    any_room.events([*prompt, *OTHER[:70]], max_tokens=10)
    any_room.submit("neighbour", OTHER[:50], use_cache=False, ignore_eos=True, max_tokens=30)
    assert chunks_of(any_room.events(prompt, **fields)) == first, "after another one, and beside one"
    any_room.empty()
    assert chunks_of(any_room.events(prompt, **fields)) == first, "from RAM"
    any_room.restart()
    assert chunks_of(any_room.events(prompt, **fields)) == first, "after a restart"
    assert any_room.witness.hits["disk"] == 1


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("name", ["smollm2", "gemma3:270m", "qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"])
def test_deterministic_answers_are_the_same_in_hundreds_of_trees(catalogue_model, name, tmp_path):
    model = catalogue_model(name)
    answered = grow(model, tmp_path, LONG_TREES, 30, fields=DETERMINISTIC).answered
    cached = cached_tokens(answered)
    assert min(cached["ram"], cached["disk"]) > LONG_TREES * BLOCK_TOKENS, cached
    assert others_computed_afresh(model, tmp_path / "afresh", answered) == []
