"""Requests with several choices, with thoughts, with a grammar: whole engines on a fake model."""

import msgspec
import numpy as np
import pytest
from asking import ask
from fakes import (
    BOS,
    END_OF_TURN,
    USER_TAG,
    ByteTable,
    LiteralConstraint,
    assert_idle,
    hashed_logits,
    make_engine,
    run_to_end,
    submit,
)

from pinyon.engine.events import Chunk, Failed, Finished, FinishReason, Progress
from pinyon.engine.request import Grammar, Reasoning, SamplingParams

SAMPLED = SamplingParams(temperature=1.0, seed=7)
THINK = Reasoning("<think>", ("</think>",))
TAGGED = Reasoning("<tool>", ("</tool>",))
"""The start tag is a token of its own in the fake vocabulary."""


def texts(events, choices=1):
    found = [("", "")] * choices
    for event in events:
        if isinstance(event, Chunk):
            text, reasoning = found[event.index]
            found[event.index] = (text + event.text, reasoning + event.reasoning)
    return found


def says(text, end=(END_OF_TURN,)):
    """A model that writes this whatever it reads; what is no byte of text is a token id."""
    tokens = [*(text.encode() if isinstance(text, str) else text), *end]

    def next_token(_name, _tokens, generated):
        return tokens[min(generated, len(tokens) - 1)]

    return next_token


def run(next_token, request):
    made = make_engine(next_token, cells=1024)
    events = run_to_end(made.engine, request)[request.id]
    assert_idle(made)
    assert [isinstance(event, Finished | Failed) for event in events] == [False] * (len(events) - 1) + [True]
    return events


# Choices


def test_each_choice_is_what_its_own_seed_gives_alone():
    together = run(hashed_logits, ask("a", sampling=SAMPLED, max_tokens=30, n=3))
    alone = [
        run(hashed_logits, ask("a", sampling=msgspec.structs.replace(SAMPLED, seed=seed), max_tokens=30))
        for seed in (7, 8, 9)
    ]
    assert texts(together, 3) == [texts(events)[0] for events in alone]
    assert len(set(texts(together, 3))) == 3
    assert together[-1].seed == 7


def test_usage_counts_the_prompt_once_and_the_tokens_of_all_choices():
    events = run(says("abc"), ask("a", "hello", n=3))
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == (5, 9)
    assert events[-1].reasons == (FinishReason.STOP,) * 3


def test_progress_is_told_once_for_all_choices_and_begins_with_nothing():
    events = run(says("x"), ask("a", "p" * 100, n=2))
    assert [event.done for event in events if isinstance(event, Progress)] == [0, 64, 100]
    assert isinstance(events[0], Progress)


def test_choices_end_on_their_own():
    def next_token(_name, _tokens, generated):
        row = np.zeros(ByteTable.size, np.float32)
        row[ord("x")], row[END_OF_TURN] = 21, 20
        return row

    events = run(next_token, ask("a", sampling=SAMPLED, max_tokens=20, n=8))
    assert len({len(text) for text, _ in texts(events, 8)}) > 2


def test_cancelling_ends_every_choice():
    made = make_engine(says("abcdef"), cells=1024)
    events = submit(made.engine, ask("a", n=3))
    for _ in range(3):
        events += made.engine.step()
    events += made.engine.cancel("a")
    last = events[-1][1]
    assert last.reasons == (FinishReason.CANCELLED,) * 3
    assert_idle(made)


def test_a_failure_of_one_choice_ends_the_request_and_no_other():
    def next_token(name, tokens, generated):
        row = np.zeros(ByteTable.size, np.float32)
        row[ord("x")] = 10
        if name == "bad" and generated == 2:
            row[0] = np.nan
        return row

    made = make_engine(next_token, cells=1024)
    events = run_to_end(made.engine, ask("bad", n=3), ask("good", max_tokens=6))
    assert isinstance(events["bad"][-1], Failed)
    assert sum(isinstance(event, Failed) for event in events["bad"]) == 1
    assert texts(events["good"]) == [("xxxxxx", "")]
    assert_idle(made)


# Thoughts


def test_thoughts_and_answer_come_apart_and_are_counted():
    events = run(says("<think>why</think>because"), ask("a", reasoning=THINK))
    assert texts(events) == [("because", "why")]
    usage = events[-1].usage
    assert (usage.reasoning_tokens, usage.completion_tokens) == (len("<think>why</think>"), 25)


def test_a_block_that_the_prompt_opened_needs_no_tag():
    opened = msgspec.structs.replace(THINK, opened=True)
    assert texts(run(says("why</think>because"), ask("a", reasoning=opened))) == [("because", "why")]


def test_stop_strings_end_the_answer_and_not_the_thoughts():
    events = run(says("<think>stop?</think>go on, stop, no"), ask("a", reasoning=THINK, stop=("stop",)))
    assert texts(events) == [("go on, ", "stop?")]
    assert events[-1].reasons == (FinishReason.STOP,)


@pytest.mark.parametrize(("limit", "answer", "thoughts"), [(12, "", "why o"), (14, "", "why on"), (22, "b", "why on")])
def test_nothing_is_lost_where_the_answer_is_cut(limit, answer, thoughts):
    events = run(says("<think>why on</think>because"), ask("a", reasoning=THINK, max_tokens=limit))
    text, reasoning = texts(events)[0]
    assert (text, reasoning.removesuffix("<")) == (answer, thoughts)
    assert events[-1].reasons == (FinishReason.LENGTH,)


def test_an_end_token_inside_the_thoughts_ends_the_answer():
    events = run(says("<think>hm"), ask("a", reasoning=THINK))
    assert texts(events) == [("", "hm")]
    assert events[-1].reasons == (FinishReason.STOP,)


def test_tags_may_be_control_tokens():
    tags = Reasoning("<s>think", ("</think>",))
    assert texts(run(says([BOS, *b"thinkwhy</think>so"]), ask("a", reasoning=tags))) == [("so", "why")]
    assert texts(run(says([BOS, *b"think"]), ask("a"))) == [("think", "")]


def test_log_probabilities_are_those_of_the_answer():
    events = run(says("<think>why</think>so"), ask("a", reasoning=THINK, logprobs=0))
    chosen = [position.chosen.raw for event in events if isinstance(event, Chunk) for position in event.logprobs]
    assert b"".join(chosen) == b"so"


# Grammars

JSON = Grammar('{"a": 1}')


def test_the_grammar_shapes_the_answer_and_ends_it():
    events = run(says("free text"), ask("a", grammar=JSON))
    assert texts(events) == [(JSON.source, "")]
    assert events[-1].reasons == (FinishReason.STOP,)
    assert events[-1].usage.completion_tokens == len(JSON.source)


def test_an_answer_that_is_cut_inside_its_grammar_says_length():
    events = run(says("free text"), ask("a", grammar=JSON, max_tokens=4))
    assert texts(events) == [(JSON.source[:4], "")]
    assert events[-1].reasons == (FinishReason.LENGTH,)


def test_the_grammar_waits_for_the_end_of_thoughts_that_the_prompt_opened():
    opened = msgspec.structs.replace(THINK, opened=True)
    events = run(says("let me see</think>free text"), ask("a", grammar=JSON, reasoning=opened))
    assert texts(events) == [(JSON.source, "let me see")]


def test_the_model_may_think_before_an_answer_with_a_grammar():
    events = run(says([USER_TAG, *b"hm</tool>free"]), ask("a", grammar=JSON, reasoning=TAGGED))
    assert texts(events) == [(JSON.source, "hm")]


def test_a_tag_inside_a_constrained_answer_is_its_text():
    literal = Grammar("a <think>b</think>")
    assert texts(run(says("x"), ask("a", grammar=literal, reasoning=THINK))) == [(literal.source, "")]


def test_a_grammar_is_compiled_once_for_all_choices(monkeypatch):
    engine, *_ = make_engine(says("x"))
    compiled = []
    compile_grammar = engine._compile_grammar
    monkeypatch.setattr(
        engine, "_compile_grammar", lambda grammar: compiled.append(grammar) or compile_grammar(grammar)
    )
    constraints = engine.prepare(ask("a", grammar=JSON, n=3)).constraints
    assert (compiled, len({id(constraint) for constraint in constraints})) == ([JSON], 3)
    for constraint in constraints:
        constraint.close()


def test_every_choice_has_a_grammar_of_its_own():
    events = run(hashed_logits, ask("a", sampling=SAMPLED, grammar=JSON, n=3))
    assert texts(events, 3) == [(JSON.source, "")] * 3


@pytest.mark.parametrize("ending", ["end", "cut", "cancel", "failure"])
def test_the_state_of_a_grammar_is_released_however_the_answer_ends(ending):
    before = LiteralConstraint.open
    engine, *_ = make_engine(says("x"), failing=[3] if ending == "failure" else [])
    submit(engine, ask("a", grammar=JSON, n=2, max_tokens=3 if ending == "cut" else None))
    assert LiteralConstraint.open == before + 2
    engine.step()
    if ending == "cancel":
        engine.cancel("a")
    while engine.busy:
        engine.step()
    assert LiteralConstraint.open == before


def test_a_preempted_answer_keeps_its_place_in_the_grammar():
    long = Grammar("x" * 150)
    engine, *_ = make_engine(says("y"), cells=200)
    events = run_to_end(engine, ask("a", grammar=long), ask("b", grammar=long))
    assert [texts(events[name]) for name in "ab"] == [[(long.source, "")]] * 2
