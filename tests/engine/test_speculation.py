"""Answers with drafts are those without, whatever is drafted; and the tests that say so notice faults."""

from itertools import chain, repeat

import msgspec
import numpy as np
import pytest
from fakes import END_OF_TURN, Oracle, assert_idle, hashed_logits, make_engine, run_to_end, submit, text_of

from pinyon.engine.cost_model import CostModel
from pinyon.engine.drafters import Proposal, SuffixDrafter
from pinyon.engine.events import Chunk, Finished, FinishReason
from pinyon.engine.gate import Gate
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.request import GenerateRequest, Grammar, SamplingParams, Speculate, Text
from pinyon.engine.sequence import Sequence
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.step_budget import StepBudget

GREEDY = SamplingParams(temperature=0, seed=1)
SEEDED = SamplingParams(temperature=1, top_p=1, min_p=0, repeat_penalty=1.3, seed=42)
BIASED = msgspec.structs.replace(SEEDED, logit_bias=((END_OF_TURN, -100.0), (ord("e"), 1.5)), presence_penalty=0.5)
PENALISED = SamplingParams(temperature=0, seed=1, repeat_penalty=1.5, frequency_penalty=0.3)


def ask(name="a", text="hello", sampling=GREEDY, **fields):
    return GenerateRequest(name, (Text(text),), sampling, **{"max_tokens": 60, **fields})


REQUESTS = {
    "greedy": ask(),
    "seeded": ask(sampling=SEEDED),
    "biased": ask(sampling=BIASED),
    "penalised": ask(sampling=PENALISED),
    "stops": ask(sampling=BIASED, stop=("e", "qz", "abc")),
    "no stop comes": ask(sampling=BIASED, stop=("never so",)),
    "logprobs": ask(sampling=SEEDED, logprobs=3),
    "one token": ask(sampling=BIASED, max_tokens=1),
    "two tokens": ask(sampling=BIASED, max_tokens=2),
    "several choices": ask(sampling=BIASED, n=3),
    "to the end of the context": ask(text="x" * 90, sampling=BIASED, max_tokens=None),
    "on after an end": ask(sampling=SEEDED, ignore_eos=True),
    "a grammar": ask(grammar=Grammar("exactly this text, and nothing else")),
    "no cache": ask(sampling=SEEDED, use_cache=False),
    "private": ask(sampling=SEEDED, private=True),
    "batch": ask(sampling=BIASED, priority="batch"),
}


def told(events):
    """Return what a client gets, however it was cut into events."""
    chunks = [event for event in events if isinstance(event, Chunk)]
    by_choice = {}
    for chunk in chunks:
        text, tokens, logprobs = by_choice.get(chunk.index, ("", (), ()))
        by_choice[chunk.index] = (text + chunk.text, tokens + chunk.token_ids, logprobs + chunk.logprobs)
    end = events[-1]
    assert isinstance(end, Finished)
    return by_choice, end.reasons, end.usage, end.seed, end.cache


def answered(request, drafter=None, **options):
    made = make_engine(hashed_logits, **{"cells": 150, "drafter": drafter, **options})
    events = run_to_end(made.engine, request)[request.id]
    assert_idle(made)
    return events, len(made.runner.batches)


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_is_the_same_with_drafts(name, wrong, window):
    request = REQUESTS[name]
    plain, plain_steps = answered(request, window=window)
    drafted, steps = answered(request, Oracle(hashed_logits, wrong=wrong), window=window)
    assert told(drafted) == told(plain)
    report = drafted[-1].speculation
    completion = plain[-1].usage.completion_tokens
    assert report.accepted <= report.drafted
    if wrong == 1:
        assert report.accepted == 0
        assert steps == plain_steps
    elif wrong == 0 and request.sampling is GREEDY and request.grammar is None and completion > 10:
        assert report.acceptance > 0.9
        assert steps < plain_steps / 2


def test_an_end_in_a_draft_ends_the_answer():
    class Ending:
        name = "ending"

        def propose(self, sequence, limit):
            return Proposal([*b"abc", END_OF_TURN, *b"def"][:limit], np.ones(min(limit, 7)))

        def took(self, sequence, tokens): ...
        def ended(self, sequence): ...

    def next_token(_name, tokens, generated):
        return [*b"xabc", END_OF_TURN][generated] if generated < 5 else ord("!")

    made = make_engine(next_token, drafter=Ending())
    events = run_to_end(made.engine, ask())["a"]
    assert text_of(events) == "xabc"
    assert events[-1].reasons == (FinishReason.STOP,)
    assert_idle(made)


def test_tokens_that_come_together_are_one_chunk():
    events, _ = answered(ask(sampling=PENALISED), Oracle(hashed_logits, wrong=0, depth=30))
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert max(len(chunk.token_ids) for chunk in chunks) > 3
    assert sum(len(chunk.token_ids) for chunk in chunks) == events[-1].usage.completion_tokens


def test_what_was_drafted_in_vain_is_not_kept_for_others():
    """A second request with the answer so far finds just what was accepted; its KV is checked token by token."""
    made = make_engine(hashed_logits, drafter=Oracle(hashed_logits, wrong=0.5))
    first = run_to_end(made.engine, ask(sampling=BIASED))["a"]
    whole = "hello" + text_of(first)
    second = run_to_end(made.engine, ask("b", whole + "more"))["b"]
    assert second[-1].usage.cached_tokens == len(whole) - 1
    assert second[-1].speculation.steps


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"speculate": Speculate.OFF}, "switched off"),
        ({"deterministic": True}, "token by token"),
    ],
)
def test_nothing_is_drafted_where_it_must_not_be(fields, why):
    oracle = Oracle(hashed_logits, wrong=0)
    plain, steps = answered(ask(**fields))
    drafted, drafted_steps = answered(ask(**fields), oracle)
    assert told(drafted) == told(plain)
    assert drafted_steps == steps
    assert not oracle.taken
    assert why in drafted[-1].speculation.off


def test_an_engine_that_cannot_take_back_says_so():
    events, _ = answered(ask())
    assert "cannot be taken back" in events[-1].speculation.off


def test_nobody_is_drafted_for_while_a_prompt_is_computed():
    oracle = Oracle(hashed_logits, wrong=0)
    made = make_engine(hashed_logits, drafter=oracle)
    submit(made.engine, ask(sampling=BIASED))
    made.engine.step()
    submit(made.engine, ask("b", "y" * 200))
    while made.scheduler.waiting or any(each.is_reading for each in made.scheduler.running):
        made.engine.step()
        assert dict(made.runner.batches[-1]).get("a", 1) == 1
    made.engine.step()
    assert any(rows > 1 for _, rows in made.runner.batches[-1])


def test_drafts_make_nobody_lose_cells():
    """Two answers that just fit: a draft may not take the cell that the other's next token needs."""
    made = make_engine(hashed_logits, cells=140, drafter=Oracle(hashed_logits, wrong=0, depth=63))
    events = run_to_end(made.engine, *(ask(name, sampling=BIASED, max_tokens=60) for name in "ab"))
    assert made.scheduler.preemptions == 0
    assert [event[-1].usage.completion_tokens for event in events.values()] == [60, 60]


def test_the_report_says_what_came_of_the_drafts():
    oracle = Oracle(hashed_logits, wrong=0.2)
    (*_, end), _steps = answered(ask(sampling=BIASED), oracle)
    report = end.speculation
    assert report.drafter == "oracle"
    assert report.steps == sum(report.depths.values()) == len(oracle.taken)
    assert report.tokens == sum(oracle.taken)
    assert report.accepted == report.tokens - report.steps
    assert report.drafted == sum(depth * steps for depth, steps in report.depths.items())
    assert report.gain == pytest.approx(report.tokens / report.steps), "rows cost nothing here"


# What is drafted


def looping(_name, tokens, generated):
    """The same twenty letters, for ever."""
    return ord("a") + generated % 20


def test_text_that_comes_again_is_drafted():
    made = make_engine(looping, drafter=SuffixDrafter())
    events = run_to_end(made.engine, ask(max_tokens=500))["a"]
    report = events[-1].speculation
    assert report.drafter == "suffix"
    assert report.acceptance > 0.95
    assert len(made.runner.batches) < 60
    assert [*text_of(events).encode()] == [ord("a") + number % 20 for number in range(500)]


def test_what_was_not_worth_a_row_teaches_all_the_same():
    drafter = SuffixDrafter()
    made = make_engine(looping, drafter=drafter, budget=Costly())
    run_to_end(made.engine, ask(max_tokens=200))
    assert all(rows == 1 for batch in made.runner.batches[1:] for _, rows in batch)
    assert drafter._own.chances(60, 1)[0] > 0.97


def quoting(text):
    """The model says the same whatever it is asked."""

    def next_token(_name, _tokens, generated):
        return text[generated] if generated < len(text) else END_OF_TURN

    return next_token


SAYING = b"The quick brown fox jumps over the lazy dog, and wonders whether anybody would mind."


def steps_of(made, request):
    before = len(made.runner.batches)
    run_to_end(made.engine, request)
    return len(made.runner.batches) - before


@pytest.mark.parametrize(
    ("first", "second", "is_known"),
    [
        ({}, {}, True),
        ({"client": "me"}, {"client": "me"}, True),
        ({"client": "me"}, {"client": "you"}, False),
        ({"namespace": "mine"}, {"namespace": "yours"}, False),
        ({"private": True}, {}, False),
        ({"use_cache": False}, {}, False),
        ({}, {"use_cache": False}, False),
    ],
)
def test_what_a_client_was_answered_is_drafted_for_it_alone(first, second, is_known):
    made = make_engine(quoting(SAYING), drafter=SuffixDrafter())
    plain = steps_of(made, ask("a", "What?", max_tokens=None, **first))
    again = steps_of(made, ask("b", "And now?", max_tokens=None, **second))
    assert plain > 60
    assert (again < 20) == is_known
    assert_idle(made)


@pytest.mark.parametrize("before", [False, True])
def test_what_is_to_be_forgotten_is_drafted_no_more(before):
    made = make_engine(quoting(SAYING), drafter=SuffixDrafter())
    steps_of(made, ask("a", "What?", max_tokens=None, conversation="c"))
    if before:
        made.engine.forget_before(2**40)
    else:
        made.engine.forget("c")
    assert steps_of(made, ask("b", "And now?", max_tokens=None)) > 60


class Costly(StepBudget):
    """Each row costs what a step does."""

    def __init__(self):
        costs = CostModel()
        costs.measure_step(1, 0, 1.0)
        for rows in chain.from_iterable(repeat((1, 2, 4, 8, 16, 32, 64), 30)):
            costs.measure_step(rows, 0, float(rows))
        super().__init__(costs, max_rows=128, stall_s=100)


# Faults


def keep_what_differs(self, logits, draft=()):
    """The acceptance rule, off by one."""
    matched = True
    for row, foreseen in zip(logits, (*draft, None), strict=True):
        token = self._sampler.choose(row if self._gate is None else self._gate.allowed(row))
        if (reason := self._took(token, row)) is not None:
            return self.finish(reason)
        if not matched:
            break
        matched = token == foreseen
    return self._chunk()


def trust_the_draft(self, logits, draft=()):
    for token, row in zip(draft, logits, strict=False):
        if (reason := self._took(token, row)) is not None:
            return self.finish(reason)
    return honest_take(self, logits[len(draft) :])


def advance_the_grammar_on_proposal(self, logits, draft=()):
    for token in draft:
        if self._gate is not None:
            self._gate.take(token)
    return honest_take(self, logits, draft)


def count_one_more(self, sequence, accepted):
    return honest_checked(self, sequence, accepted + 1)


honest_take, honest_checked = Sequence.take, SharedKv.checked
FAULTS = [
    (Sequence, "take", keep_what_differs),
    (Sequence, "take", trust_the_draft),
    (Sequence, "take", advance_the_grammar_on_proposal),
    (SharedKv, "checked", count_one_more),
    (SharedKv, "checked", lambda _self, _sequence, _accepted: None),
    (KvCells, "cut", lambda _self, _leaf: None),
    (Gate, "take", lambda _self, _token: None),
]


def differing(plain):
    """Return which answers with drafts are not those without, or break an assertion of the fakes."""
    return [
        name for name, request in REQUESTS.items() if told(answered(request, Oracle(hashed_logits))[0]) != plain[name]
    ]


@pytest.mark.parametrize(("owner", "method", "fault"), FAULTS)
def test_a_planted_fault_is_noticed(owner, method, fault, monkeypatch):
    plain = {name: told(answered(request)[0]) for name, request in REQUESTS.items()}
    assert not differing(plain)
    monkeypatch.setattr(owner, method, fault)
    try:
        found = differing(plain)
    except (AssertionError, IndexError):
        return  # the fakes have noticed it
    assert found
