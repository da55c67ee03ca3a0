"""Deterministic requests: computed alone, from the first cell, in the same pieces, whatever was or is asked beside them."""

import io

import pytest
from fake_disk import FakeDisk
from fakes import (
    END_OF_TURN,
    USER_TAG,
    assert_idle,
    make_engine,
    make_store,
    run_to_end,
    scripted,
    submit,
    text_of,
    tidied,
)

from pinyon.engine.cache_report import Miss
from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Chunk
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Text, Tokens

GREEDY = SamplingParams(temperature=0)
ABC = "".join(f"{number:03}," for number in range(100))
"""A prompt of 400 tokens that is nowhere like itself."""
ANSWER = 8
PIECES = [(0, 64), (64, 64), (128, 22), *((150 + each, 1) for each in range(ANSWER - 1))]
"""Position and length of all that is computed of 150 tokens and an answer."""


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), GREEDY, **{"max_tokens": ANSWER, "deterministic": True, **fields})


def usual(name, prompt, **fields):
    return ask(name, prompt, deterministic=False, **fields)


def pieces(made, *requests):
    """Answer the first request, with others beside it; return its events, and the position and length of all that it computes.

    Then each of its tokens must lie in the cell of its position, and nobody else's anywhere.
    """
    memory, computed = made.runner.memory, []

    def compute(ids, tokens):
        start = memory.last_position(ids[0]) + 1
        assert type(memory).compute(memory, ids, tokens)
        if requests[0].id in dict(made.runner.batches[-1]):
            computed.append((start, len(tokens)))
            assert [cell.position for cell in memory.cells if cell.ids] == [*range(start + len(tokens))]
            assert all(cell.ids for cell in memory.cells[: start + len(tokens)]), "it does not begin in the first cell"
        return True

    memory.compute = compute
    events = run_to_end(made.engine, *requests)[requests[0].id]
    del memory.compute
    assert_idle(made)
    return events, computed


def nothing():
    return make_engine(cells=1024, store=make_store())


def after_others():
    """Others have left holes, and blocks of the same prompt that were computed in other pieces."""
    made = nothing()
    run_to_end(made.engine, usual("x", "x" * 70, use_cache=False), usual("y", ABC[:100]), usual("z", ABC[:333], n=3))
    return tidied(made)


@pytest.mark.parametrize("state", [nothing, after_others])
@pytest.mark.parametrize("fields", [{}, {"use_cache": False}, {"private": True}])
@pytest.mark.parametrize("beside", [[], [usual("b", ABC[:200]), ask("c", ABC[:100]), usual("d", "d" * 300)]])
def test_nothing_changes_what_is_computed(state, fields, beside):
    events, computed = pieces(state(), ask("a", ABC[:150], **fields), *beside)
    assert computed == PIECES
    assert events[-1].cache.cached == 0
    assert text_of(events) == text_of(run_to_end(nothing().engine, usual("a", ABC[:150]))["a"])


@pytest.mark.parametrize(
    ("asked_before", "prompt", "known"),
    [
        (ABC[:150], ABC[:150], 128),
        (ABC[:128], ABC[:150], 128),
        (ABC[:150], ABC[:128], 64),
        (ABC[:150], ABC[:100] + "another end", 64),
        (ABC[:63], ABC[:150], 0),
    ],
)
def test_whole_blocks_of_such_prompts_come_back(asked_before, prompt, known):
    made = nothing()
    pieces(made, ask("a", asked_before))
    events, computed = pieces(made, ask("b", prompt))
    assert events[-1].usage.cached_tokens == events[-1].cache.ram == known
    assert computed == [piece for piece in pieces(nothing(), ask("b", prompt))[1] if piece[0] >= known]


def test_they_come_back_from_disk():
    disk = FakeDisk()
    made = make_engine(cells=1024, store=make_store(disk=disk))
    pieces(made, ask("a", ABC[:150]))
    tidied(made).engine.close()
    events, computed = pieces(make_engine(cells=1024, store=make_store(disk=disk)), ask("b", ABC[:150]))
    assert events[-1].cache.disk == 128
    assert computed == PIECES[2:]


def test_others_do_not_use_them_nor_the_other_way_round():
    made = nothing()
    pieces(made, ask("a", ABC[:150]))
    tidied(made)
    assert run_to_end(made.engine, usual("b", ABC[:150]))["b"][-1].usage.cached_tokens == 0
    made = tidied(after_others())
    assert pieces(made, ask("b", ABC[:150]))[0][-1].usage.cached_tokens == 0


@pytest.mark.parametrize(("common", "cached"), [(30, 0), (100, 64)])
def test_where_two_texts_part_inside_a_block_is_told(common, cached):
    made = nothing()
    run_to_end(made.engine, ask("a", ABC[:150]))
    report = run_to_end(made.engine, ask("b", ABC[:common] + "x" * 50))["b"][-1].cache
    assert (report.cached, report.miss, report.position) == (cached, Miss.DIVERGED, common)
    assert (report.expected[:3], report.got[:3]) == (ABC[common : common + 3], "xxx")


@pytest.mark.parametrize(
    ("fields", "miss"), [({"use_cache": False}, Miss.DISABLED), ({"private": True}, Miss.DISABLED)]
)
def test_without_the_cache_nothing_comes_back(fields, miss):
    made = nothing()
    pieces(made, ask("a", ABC[:150]))
    events, computed = pieces(made, ask("b", ABC[:150], **fields))
    assert (events[-1].cache.miss, computed) == (miss, PIECES)


@pytest.mark.parametrize("fields", [{"use_cache": False}, {"private": True}])
def test_without_the_cache_nothing_is_left(fields):
    made = nothing()
    pieces(made, ask("a", ABC[:150], **fields))
    assert pieces(tidied(made), ask("b", ABC[:150]))[1] == PIECES


def test_the_answer_s_tokens_are_computed_again_in_the_next_turn():
    made = nothing()
    events, _ = pieces(made, ask("a", ABC[:150], max_tokens=100))
    turn = ABC[:150] + text_of(events) + "and now?"
    events, computed = pieces(tidied(made), ask("b", turn))
    assert (events[-1].cache.ram, computed[:3]) == (128, [(128, 64), (192, 64), (256, 2)])


def test_how_an_answer_was_spelled_does_not_count():
    """The tokenizer has one token for what was answered in six."""
    made = make_engine(scripted(a=[*b"<tool>"]), cells=1024)
    run_to_end(made.engine, GenerateRequest("a", (Text("<|im_end|>", special=True),), GREEDY))
    turn = (Text("<|im_end|><tool><|im_end|>", special=True),)
    spelled = [END_OF_TURN, *b"<tool>", END_OF_TURN]
    assert made.engine.prepare(GenerateRequest("b", turn)).prompt == spelled
    for fields in ({"deterministic": True}, {"use_cache": False}):
        prepared = made.engine.prepare(GenerateRequest("b", turn, **fields))
        assert prepared.prompt == [END_OF_TURN, USER_TAG, END_OF_TURN]


def test_what_was_computed_before_a_cancel_serves_the_next():
    made = nothing()
    submit(made.engine, ask("a", ABC[:300]))
    for _ in range(3):
        made.engine.step()
    made.engine.cancel("a")
    assert_idle(made)
    assert pieces(made, ask("b", ABC[:150]))[1] == PIECES[2:]


def test_several_choices_run_one_after_another():
    made = nothing()
    events = run_to_end(made.engine, ask("a", ABC[:150], n=3))["a"]
    texts = ["".join(e.text for e in events if isinstance(e, Chunk) and e.index == index) for index in range(3)]
    assert texts == [text_of(pieces(nothing(), ask("a", ABC[:150]))[0])] * 3
    assert all(len(batch) == 1 for batch in made.runner.batches)


def test_it_waits_for_those_before_it_and_those_behind_wait_for_it():
    made = nothing()
    ended = []
    for request in (usual("a", "a" * 90, max_tokens=30), ask("b", ABC[:90]), usual("c", "c" * 20, max_tokens=1)):
        submit(made.engine, request)
    while made.engine.busy:
        ended += [owner for owner, event in made.engine.step() if hasattr(event, "reasons")]
    assert ended == ["a", "b", "c"]
    assert all(len(batch) == 1 for batch in made.runner.batches)


# On a real model, by every bit of the probabilities


@pytest.fixture
def load(smollm2, tmp_path):
    made = []

    def start(cells=1024):
        config = EngineConfig(bytes(smollm2), 2, cells, kv_ram_cap_bytes=1 << 28)
        made.append(load_engine(config, smollm2, NativeLog(io.StringIO())))
        loaded = made[-1]
        loaded.engine.use_disk(open_tier(tmp_path, smollm2, loaded.context.kv_settings, 1 << 28))
        return loaded

    yield start
    for each in made:
        each.close()


def bits(loaded, request, *beside):
    """Return the tokens of an answer with all probabilities that were told, and how many prompt tokens were known."""
    events = run_to_end(loaded.engine, request, *beside)[request.id]
    chunks = [event for event in events if isinstance(event, Chunk)]
    told = [(chunk.token_ids, chunk.logprobs) for chunk in chunks]
    assert sum(len(ids) for ids, _ in told) == 12
    return told, events[-1].usage.cached_tokens


@pytest.mark.model
def test_the_same_bits_whatever_else_was_asked(load):
    loaded = load()
    text = loaded.vocab.encode((Text("The quick brown fox jumps over 13 lazy dogs; nobody knows why. " * 30),))

    def request(name, start, end, *, deterministic=True, **fields):
        sampling = SamplingParams(seed=5, temperature=1.0)
        prompt = (Tokens(tuple(text[start:end])),)
        return GenerateRequest(
            name, prompt, sampling, 12, logprobs=3, ignore_eos=True, deterministic=deterministic, **fields
        )

    first, known = bits(loaded, request("a", 0, 150))
    assert known == 0
    assert bits(loaded, request("b", 0, 150, use_cache=False)) == (first, 0)
    neighbours = [request(name, at, at + 130, deterministic=False) for name, at in (("x", 7), ("y", 0), ("z", 31))]
    bits(loaded, *neighbours)
    assert bits(loaded, request("c", 0, 150), *neighbours) == (first, 128)
    assert bits(loaded, request("d", 0, 150, use_cache=False)) == (first, 0)
    bits(loaded, neighbours[0])
    told, _ = bits(loaded, request("e", 0, 150, deterministic=False), *neighbours)
    assert told != first, "the comparison sees the neighbours of a usual request"
    loaded.engine.close()
    assert bits(load(2048), request("f", 0, 150)) == (first, 128)
