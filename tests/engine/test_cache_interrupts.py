"""Whoever leaves in the middle leaves right KV behind: compared by bytes, in the context, from RAM and from disk. R39, R64

Bytes are compared because text cannot: logits move with the shape of a computation (FACTS: Equality), so a greedy answer may be
another one beside neighbours, and be the same one over wrong KV. What a request reuses is what was computed, byte for byte.
"""

import pytest
from asking import GREEDY, ask
from fakes import WholeChunks, run_to_end
from kept_kv import LONG_AGO, kept_engine

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.request import GenerateRequest, Tokens

pytestmark = pytest.mark.model

PROMPT = LONG_AGO[:195]
ANSWER = 40
OTHERS = [
    "Once upon a time, in a town of clocks. " * 3,
    PROMPT[:70] + "and then in another way, for a while",
    "zyxwvu" * 20,
]


def start(made, name, prompt, **fields):
    made.engine.submit(made.engine.prepare(ask(name, prompt, **{"max_tokens": 1, **fields})))


def finish(made):
    while made.engine.busy:
        made.engine.step()


def leaf_of(made, prompt):
    """The sequence that holds the longest beginning of a prompt."""
    tokens = made.engine.tokenize(ask("", prompt).prompt)
    match = made.engine._kv._cells.match("", tokens)
    assert match.source is not None
    return match.source


@pytest.fixture(scope="module")
def cold(tiny):
    """The KV of the prompt's whole blocks, computed in one go by an engine that does nothing else."""
    with kept_engine(tiny, None) as made:
        start(made, "a", PROMPT)
        finish(made)
        states = made.kv(leaf_of(made, PROMPT))
    assert len(states) == 3
    return states


@pytest.mark.parametrize("way_back", ["context", "ram", "disk"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_prompt_that_was_left_half_way_goes_on_from_there(tiny, tmp_path, cold, steps, way_back):
    folder = tmp_path / "kv"
    known = min(BLOCK_TOKENS * steps, len(PROMPT))
    with kept_engine(tiny, folder) as made:
        made.engine._scheduler._budget = WholeChunks()
        start(made, "a", PROMPT, max_tokens=50)
        for _ in range(steps):
            made.engine.step()
        made.engine.cancel("a")
        if known and way_back == "context":
            assert made.kv(leaf_of(made, PROMPT)) == cold[: known // BLOCK_TOKENS]
        if way_back != "disk":
            compare_again(made, cold, way_back)
    if way_back == "disk":
        with kept_engine(tiny, folder) as made:
            compare_again(made, cold, way_back)


def compare_again(made, cold, way_back):
    if way_back == "ram":
        made.engine._kv.make_room(made.engine.context_tokens)
    start(made, "b", PROMPT)
    finish(made)
    leaf = leaf_of(made, PROMPT)
    assert made.kv(leaf) == cold
    assert leaf.tokens() == made.engine.tokenize(ask("", PROMPT).prompt)
    assert made.ask(PROMPT, max_tokens=3).end.usage.cached_tokens == len(PROMPT) - 1
    made.engine._kv.check()


@pytest.mark.parametrize("way_back", ["context", "ram", "disk"])
def test_an_answer_that_was_left_half_way_is_what_the_next_turn_goes_on_from(tiny, tmp_path, way_back):
    folder, prompt = tmp_path / "kv", PROMPT[:100]
    with kept_engine(tiny, folder) as made:
        start(made, "a", prompt, max_tokens=100, ignore_eos=True)
        while made.engine._answers["a"].open[0].completion_tokens < ANSWER:
            made.engine.step()
        (sequence,) = made.engine._answers["a"].open
        tokens = [*sequence.tokens]
        donor = made.kv(sequence.leaf)
        made.engine.cancel("a")
        if way_back == "ram":
            made.engine._kv.make_room(made.engine.context_tokens)
        if way_back != "disk":
            assert next_turn(made, tokens) == donor
    if way_back == "disk":
        with kept_engine(tiny, folder) as made:
            assert next_turn(made, tokens) == donor


def next_turn(made, tokens):
    """Go on after the tokens; return the KV of what was known. The last token of an answer was chosen and not computed."""
    prompt = (*tokens, *tokens[:9])
    (events,) = run_to_end(made.engine, GenerateRequest("b", (Tokens(prompt),), GREEDY, 1)).values()
    assert events[-1].usage.cached_tokens == len(tokens) - 1
    leaf = made.engine._kv._cells.match("", prompt).source
    return made.kv(leaf)[: (len(tokens) - 1) // BLOCK_TOKENS]


@pytest.mark.parametrize("context", [256, 250])
def test_neighbours_that_come_and_go_leave_the_bytes_as_they_are(tiny, tmp_path, cold, context):
    with kept_engine(tiny, tmp_path / "kv", context=context, ram_cap_bytes=1 << 20) as made:
        start(made, "donor", PROMPT)
        finish(made)
        for round_ in range(4):
            for number, other in enumerate(OTHERS):
                start(made, f"{round_}{number}", other, max_tokens=7 + number)
            start(made, f"hit{round_}", PROMPT, max_tokens=9)
            made.engine.step()
            made.engine.cancel(f"{round_}1")
            finish(made)
            made.tidy()
            start(made, "again", PROMPT)
            finish(made)
            assert made.kv(leaf_of(made, PROMPT)) == cold
            made.engine._kv.check()
            made.engine._kv._store.check()


def test_the_comparison_notices_a_planted_fault(tiny, cold):
    """Another prefix, other positions, a block too few: none has these bytes."""
    with kept_engine(tiny, None) as made:
        start(made, "a", "?" + PROMPT[1:])
        finish(made)
        states = made.kv(leaf_of(made, "?" + PROMPT[1:]))
        assert [one == other for one, other in zip(states, cold, strict=True)] == [False] * 3
        start(made, "b", PROMPT[64:])
        finish(made)
        assert made.kv(leaf_of(made, PROMPT[64:])) != cold[1:]
