import math
from collections import Counter
from functools import cache
from random import Random

import msgspec
import numpy as np
import pytest
from fakes import (
    BOS,
    END_OF_TURN,
    EOS,
    ByteTable,
    Oracle,
    assert_idle,
    hashed_logits,
    make_engine,
    make_store,
    run_to_end,
    scripted,
    submit,
    text_of,
    tokens_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kv_compare import compare_kv

from pinyon.engine.errors import ContextOverflowError, InvalidRequestError
from pinyon.engine.events import Chunk, Failed, FailureKind, Finished, FinishReason, Progress
from pinyon.engine.request import GenerateRequest, SamplingParams, Text, Tokens
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence, State
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.text_stream import TextStream

GREEDY = SamplingParams(temperature=0)
SEEDED = SamplingParams(temperature=1, top_p=1, min_p=0, repeat_penalty=1.3, seed=42)
ENDLESS = msgspec.structs.replace(SEEDED, logit_bias=((END_OF_TURN, -100.0),))
CONTEXT = 100


def ask(name, prompt="hello", sampling=GREEDY, **fields):
    return GenerateRequest(name, (Text(prompt),), sampling, **fields)


def letters(name, count):
    """A prompt of its own for each name."""
    return ((name + "-") * count)[:count]


def is_terminal(event):
    return isinstance(event, Finished | Failed)


def answer(next_token, *requests, **options):
    made = make_engine(next_token, **{"cells": 2048, **options})
    events = run_to_end(made.engine, *requests)
    assert_idle(made)
    return events


# Text


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_an_answer_ends_at_any_end_of_generation_token(end):
    events = answer(scripted(a=[*b"hi", end, *b"more"]), ask("a"))["a"]
    assert text_of(events) == "hi"
    assert events[-1].reasons == (FinishReason.STOP,)
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == (5, 2)


@pytest.mark.parametrize(
    ("stops", "text"),
    [((), "alpha beta gamma delta"), (("beta gamma",), "alpha "), (("ta ga", "beta gamma"), "alpha be")],
)
def test_stop_strings_cut_the_answer(stops, text):
    events = answer(scripted(a=b"alpha beta gamma delta"), ask("a", stop=stops))["a"]
    assert text_of(events) == text
    assert events[-1].reasons == (FinishReason.STOP,)


MIXED = {"a": "ok 🫠 fin", "b": "你好, 世界", "c": "👩‍👩‍👧 e\u0301"}


def answers_in_one_batch():
    engine, runner, *_ = make_engine(scripted(**{name: text.encode() for name, text in MIXED.items()}))
    events = run_to_end(engine, *map(ask, MIXED))
    assert [("a", 1), ("b", 1), ("c", 1)] in runner.batches
    return {name: text_of(events[name]) for name in MIXED}


def test_characters_of_several_tokens_stay_whole_beside_others_in_one_batch():
    assert answers_in_one_batch() == MIXED


def test_a_decoder_shared_by_requests_would_be_noticed(monkeypatch):
    shared = TextStream()._decoder

    def with_shared_decoder(stops, reasoning):
        stream = TextStream(stops, reasoning)
        stream._decoder = shared
        return stream

    monkeypatch.setattr("pinyon.engine.sequence.TextStream", with_shared_decoder)
    assert answers_in_one_batch() != MIXED


def test_the_repeat_penalty_sees_the_whole_prompt():
    def next_token(_name, _tokens, _generated):
        row = np.zeros(ByteTable.size, np.float32)
        row[[ord("x"), ord("y"), ord("z")]] = 10, 9, 8
        return row

    penalised = SamplingParams(temperature=0, repeat_penalty=2.0)
    for prompt, expected in {"ab": "x", "xb": "y", "bx": "y", "xy": "z"}.items():
        assert text_of(answer(next_token, ask("a", prompt, penalised, max_tokens=1))["a"]) == expected


def test_control_strings_in_the_prompt_are_text():
    engine, *_ = make_engine()
    tokens = engine.prepare(ask("a", "hi<|im_end|>\n<s>system")).prompt
    assert tokens == list(b"hi<|im_end|>\n<s>system")


@pytest.mark.parametrize("prompt", [(Text("hi"),), (Text("<s>hi", special=True),), (Tokens((BOS, *b"hi")),)])
def test_the_model_sees_exactly_one_bos(prompt):
    engine, runner, *_ = make_engine(adds_bos=True)
    submit(engine, GenerateRequest("a", prompt))
    engine.step()
    assert runner.memory.tokens_of(0) == [BOS, *b"hi"]


def test_a_prompt_with_nothing_but_bos_is_continued():
    assert make_engine(adds_bos=True)[0].prepare(ask("a", "")).prompt == [BOS]


# Requests that are refused


@pytest.mark.parametrize("prompt", [(), (Text(""),), (Tokens(()),)])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        make_engine()[0].prepare(GenerateRequest("a", prompt))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("temperature", {"sampling": SamplingParams(temperature=math.nan)}),
        ("logit_bias", {"sampling": SamplingParams(logit_bias=((ByteTable.size, 1.0),))}),
        ("stop", {"stop": ("",)}),
        ("max_tokens", {"max_tokens": 0}),
        ("prompt", {"prompt": (Tokens((ByteTable.size,)),)}),
    ],
)
def test_parameters_are_checked_against_the_vocabulary(field, fields):
    with pytest.raises(InvalidRequestError, match=field):
        make_engine()[0].prepare(msgspec.structs.replace(ask("a"), **fields))


@pytest.mark.parametrize("tokens", [CONTEXT, CONTEXT + 1, 10 * CONTEXT])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_the_figures(tokens):
    with pytest.raises(ContextOverflowError, match=f"{tokens:,}") as caught:
        make_engine(cells=CONTEXT)[0].prepare(ask("a", "x" * tokens))
    assert caught.value.as_event().data == {"prompt_tokens": tokens, "context_tokens": CONTEXT}


def test_a_huge_prompt_is_refused_without_being_tokenised(monkeypatch):
    engine = make_engine(cells=CONTEXT)[0]
    monkeypatch.setattr(ByteTable, "tokenize", lambda *_args, **_kwargs: pytest.fail("tokenised"))
    with pytest.raises(ContextOverflowError, match="at least 5,000"):
        engine.prepare(ask("a", "x" * (5000 * len("<|im_end|>"))))


def test_too_many_prompt_tokens_are_refused_before_anything_looks_at_them(monkeypatch):
    engine = make_engine(cells=CONTEXT)[0]
    monkeypatch.setattr(GenerateRequest, "checked", lambda *_args: pytest.fail("checked"))
    with pytest.raises(ContextOverflowError, match="at least 100 tokens"):
        engine.prepare(GenerateRequest("a", (Tokens((10**9,) * CONTEXT),)))


def test_bos_counts_towards_the_context():
    with pytest.raises(ContextOverflowError):
        make_engine(cells=CONTEXT, adds_bos=True)[0].prepare(ask("a", "x" * (CONTEXT - 1)))


@pytest.mark.parametrize(("prompt_tokens", "limit"), [(CONTEXT - 1, 1), (CONTEXT - 2, 2), (50, 50)])
@pytest.mark.parametrize("max_tokens", [None, CONTEXT, 10**6])
def test_an_answer_ends_with_length_where_the_context_does(prompt_tokens, limit, max_tokens):
    request = ask("a", "x" * prompt_tokens, max_tokens=max_tokens)
    events = answer(scripted(a=b"y" * 1000), request, cells=CONTEXT)["a"]
    assert text_of(events) == "y" * limit
    assert events[-1].reasons == (FinishReason.LENGTH,)
    assert events[-1].usage.completion_tokens == limit


def test_an_id_can_be_used_again_after_its_end():
    engine, *_ = make_engine(scripted(a=b"answer"))
    assert [text_of(run_to_end(engine, ask("a"))["a"]) for _ in range(2)] == ["answer", "answer"]


# Steps


def test_a_prompt_is_computed_in_chunks_and_reports_each():
    engine, runner, *_ = make_engine(scripted(a=b"x"))
    events = run_to_end(engine, ask("a", "p" * 150))["a"]
    assert runner.batches[:3] == [[("a", 64)], [("a", 64)], [("a", 22)]]
    assert events[:4] == [Progress(done, 150) for done in (0, 64, 128, 150)]


def test_decoding_goes_on_beside_a_long_prompt():
    engine, runner, *_ = make_engine(scripted(a=b"x" * 20, b=b"y"))
    submit(engine, ask("a"))
    engine.step()
    run_to_end(engine, ask("b", "p" * 100))
    assert runner.batches[1:4] == [[("a", 1), ("b", 64)], [("a", 1), ("b", 36)], [("a", 1), ("b", 1)]]


def test_short_prompts_share_a_step():
    engine, runner, *_ = make_engine(scripted(a=b"x", b=b"y", c=b"z"))
    run_to_end(engine, *map(ask, "abc"))
    assert runner.batches[0] == [("a", 5), ("b", 5), ("c", 5)]


# Cancelling


STEPS_TO = {"waiting": 0, "in its prompt": 1, "before its first token": 2, "answering": 6}


@pytest.mark.parametrize("steps", STEPS_TO.values(), ids=STEPS_TO)
def test_a_request_can_be_cancelled_when(steps):
    made = make_engine(scripted(a=b"a 123456789 END and so on"), cells=512)
    engine = made.engine
    submit(engine, ask("a", "p" * 100, stop=("123456!",)))
    events = [event for _ in range(steps) for _, event in engine.step()]
    events += [event for _, event in engine.cancel("a")]
    assert list(map(is_terminal, events)) == [False] * (len(events) - 1) + [True]
    assert events[-1].reasons == (FinishReason.CANCELLED,)
    assert text_of(events) == "a 123456789"[: max(0, steps - 1)]
    assert events[-1].usage.completion_tokens == max(0, steps - 1)
    assert_idle(made)


def test_a_request_can_be_cancelled_when_it_was_preempted():
    made = make_engine(scripted(a=b"x" * 300, b=b"y" * 300), cells=200)
    engine = made.engine
    submit(engine, ask("a"))
    submit(engine, ask("b"))
    events = engine.step()
    while engine._answers["b"].open[0].state is not State.WAITING:
        events += engine.step()
    events += engine.cancel("b")
    assert "y" * 50 in text_of([event for name, event in events if name == "b"])
    assert events[-1][1].reasons == (FinishReason.CANCELLED,)
    while engine.busy:
        assert {name for name, _ in engine.step()} == {"a"}
    assert_idle(made)


def test_cancelling_what_is_unknown_or_has_ended_does_nothing():
    engine, *_ = make_engine(scripted(a=b"x"))
    run_to_end(engine, ask("a"))
    assert engine.cancel("a") == engine.cancel("never") == []


# Failures


def test_a_failed_decode_ends_exactly_the_batch_s_requests_and_the_engine_goes_on():
    made = make_engine(scripted(a=b"abc\xf0\x9f", b=b"x", c=b"c", d=b"d"), sequence_ids=2, failing={5})
    engine, runner, *_ = made
    events = run_to_end(engine, ask("a"), ask("b", "p" * 1000), ask("c"))
    assert runner.batches[5] == [("a", 1), ("b", 64)]
    assert [events[name][-1].kind for name in "ab"] == [FailureKind.ENGINE_ERROR] * 2
    assert [sum(map(is_terminal, events[name])) for name in "abc"] == [1, 1, 1]
    assert text_of(events["a"]) == "abc\ufffd"
    assert text_of(events["c"]) == "c"
    assert text_of(run_to_end(engine, ask("d"))["d"]) == "d"
    assert_idle(made)


def test_text_held_back_for_a_stop_is_shown_when_the_decode_fails():
    events = answer(scripted(a=b"the END"), ask("a", stop=("END.",)), failing={7})["a"]
    assert text_of(events) == "the END"
    assert isinstance(events[-1], Failed)


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_damaged_logits_fail_their_own_request_only(damage, sampling):
    def next_token(name, _tokens, generated):
        row = np.zeros(ByteTable.size, np.float32)
        row[END_OF_TURN if generated == 3 else ord(name)] = 50
        if (name, generated) == ("b", 2):
            row[7] = damage
        return row

    events = answer(next_token, *(ask(name, sampling=sampling) for name in "abc"))
    assert [text_of(events[name]) for name in "abc"] == ["aaa", "bb", "ccc"]
    assert [isinstance(events[name][-1], Failed) for name in "abc"] == [False, True, False]
    assert (events["b"][-1].kind, str(damage) in events["b"][-1].message) == (FailureKind.ENGINE_ERROR, True)


# Seeds


def drawn(seed, *others):
    request = ask("a", sampling=msgspec.structs.replace(ENDLESS, seed=seed), max_tokens=100)
    return text_of(answer(hashed_logits, request, *others)["a"])


def test_a_seed_gives_the_same_text_and_another_seed_another():
    assert drawn(42) == drawn(42) != drawn(43)
    assert len(drawn(42)) == 100


def test_a_seed_s_text_does_not_depend_on_other_requests():
    assert drawn(42) == drawn(42, ask("b", "p" * 100, SEEDED, max_tokens=50), ask("c", sampling=SamplingParams()))


def test_a_seed_s_text_does_not_depend_on_preemption():
    world = World(cells=200, sequence_ids=2)
    for name in "ab":
        world.submit(ask(name, sampling=ENDLESS, max_tokens=120))
    world.finish()
    assert world.preemptions > 0
    assert text_of(world.events["b"]) == text_of(run_alone(world.requests["b"], 200))


def test_without_a_seed_answers_differ():
    endless = msgspec.structs.replace(ENDLESS, seed=None)
    events = answer(hashed_logits, *(ask(name, sampling=endless, max_tokens=100) for name in "ab"))
    assert text_of(events["a"]) != text_of(events["b"])
    assert events["a"][-1].seed != events["b"][-1].seed


# Any order of requests, steps and cancels


@cache
def run_alone(request, cells):
    engine, *_ = make_engine(hashed_logits, cells=cells, sequence_ids=1)
    return run_to_end(engine, request)[request.id]


class World:
    """An engine with little room, and what must hold of it whatever happens. `stored_blocks` have room in RAM. Tokens may be drafted."""

    def __init__(self, cells, sequence_ids, stored_blocks=0, window=0, failing=(), drafter=None):
        self.cells = cells
        self.made = make_engine(
            hashed_logits,
            cells=cells,
            sequence_ids=sequence_ids,
            store=make_store(stored_blocks),
            window=window,
            failing=failing,
            drafter=drafter,
        )
        self.engine, self.runner, self.scheduler, self.kv = self.made
        self.requests = {}
        self.events = {}
        self.ended = set()
        self.preemptions = 0
        self.cancelled_in = set()

    @property
    def sequences(self):
        return {name: answer.open[0] for name, answer in self.engine._answers.items()}

    def submit(self, request):
        self.requests[request.id] = request
        self.events[request.id] = []
        submit(self.engine, request)

    def step(self):
        before = {name for name, sequence in self.sequences.items() if sequence.leaf is not None}
        oldest = next(iter(self.scheduler.running), None)
        self._record(self.engine.step())
        assert oldest is None or oldest.done or oldest.leaf is not None, "the oldest lost its cells"
        after = self.sequences
        self.preemptions += sum(name in after and after[name].leaf is None for name in before)

    def cancel(self, name):
        if name in self.sequences:
            self.cancelled_in.add(self.sequences[name].state)
        self._record(self.engine.cancel(name))

    def tidy(self):
        while self.engine.tidy() == 0:
            self.check()

    def _record(self, emitted):
        for name, event in emitted:
            assert name not in self.ended, "an event after the last one"
            self.events[name].append(event)
            if is_terminal(event):
                self.ended.add(name)
        self.check()

    def check(self):
        self.scheduler.check()
        if len(self.runner.batches) % 8 == 0:
            compare_kv(self.kv, self.runner.memory)
        in_use = [leaf.sequence_id for leaf in self.kv._cells._tree.leaves if leaf.in_use]
        assert sorted(in_use) == sorted(sequence.leaf.sequence_id for sequence in self.scheduler.running)
        open_requests = self.events.keys() - self.ended
        assert set(self.sequences) == open_requests
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        assert {sequence.request.id for sequence in queued} == open_requests
        assert len(queued) == len(open_requests)

    def finish(self):
        while self.engine.busy:
            self.step()
            assert len(self.runner.batches) <= self._allowed_batches(), "someone starves"
        self.tidy()
        assert_idle(self.made)
        for name in self.requests:
            self._compare_with_alone(name)

    def _allowed_batches(self):
        """The oldest request goes on in every batch, so all together take no longer than one after the other, even if
        every one computes all of its tokens again."""
        usages = [run_alone(request, self.cells)[-1].usage for request in self.requests.values()]
        return sum((u.prompt_tokens + u.completion_tokens) // 64 + u.completion_tokens + 2 for u in usages)

    def _compare_with_alone(self, name):
        request, events = self.requests[name], self.events[name]
        *_, last = events
        *_, end = alone = run_alone(request, self.cells)
        assert text_of(events) == bytes(tokens_of(events)).decode() or request.stop
        if isinstance(last, Failed) or last.reasons == (FinishReason.CANCELLED,):
            assert tokens_of(events) == tokens_of(alone)[: len(tokens_of(events))]
        else:
            assert (text_of(events), tokens_of(events)) == (text_of(alone), tokens_of(alone))
            assert last.reasons == end.reasons
            assert request.sampling.seed in {None, last.seed}
        if isinstance(last, Finished):
            assert last.usage.prompt_tokens == end.usage.prompt_tokens
            assert last.usage.completion_tokens == len(tokens_of(events))
            assert 0 <= last.usage.cached_tokens < last.usage.prompt_tokens
            assert request.use_cache or not last.usage.cached_tokens
        assert all(len(event.logprobs) in {0, len(event.token_ids)} for event in events if isinstance(event, Chunk))


BEGINNINGS = [letters(name, 300) for name in ("once", "on")]


def random_prompt(random, name, world):
    """A text of its own, one that begins like others, or one that was asked before, cut somewhere or with its answer and more."""
    own = letters(name, random.randint(1, random.choice([5, 20, 150])))
    earlier = random.choice([*world.requests.values()] or [ask("", "first")])
    match random.choice(["own", "common", "common", "again", "next turn"]):
        case "common":
            prompt = random.choice(BEGINNINGS)[: random.randint(1, 100)] + own
        case "again":
            prompt = earlier.prompt[0].text
            prompt = prompt[: random.choice([len(prompt), random.randint(1, len(prompt))])]
        case "next turn":
            prompt = earlier.prompt[0].text + text_of(world.events.get(earlier.id, [])) + own
        case _:
            prompt = own
    return prompt[: world.cells - 1]


def random_request(random, name, world):
    return ask(
        name,
        random_prompt(random, name, world),
        random.choice([GREEDY, SEEDED, ENDLESS, ENDLESS]),
        max_tokens=random.choice([None, None, random.randint(1, 100)]),
        stop=random.choice([(), (), ("abc", "xq", "yz")]),
        logprobs=random.choice([None, 0, 2]),
        use_cache=random.random() < 0.9,
        private=random.random() < 0.1,
        namespace=random.choice(["", "", "", "other"]),
    )


def random_world(seed):
    random = Random(seed)
    world = World(
        cells=random.randint(200, 350),
        sequence_ids=random.choice([2, 3, 6]),
        stored_blocks=random.choice([0, 5, 50]),
        window=random.choice([0, 0, 30]),
        failing=[random.randint(0, 500)] if random.random() < 0.3 else [],
        drafter=Oracle(hashed_logits, wrong=0.4, seed=seed) if seed % 2 else None,
    )
    for number in range(random.randint(3, 10)):
        world.submit(random_request(random, f"r{number}", world))
        for _ in range(random.choice([0, 1, 12, 40])):
            if world.engine.busy:
                world.step()
            else:
                world.tidy()
        if random.random() < 0.3:
            world.cancel(random.choice(list(world.requests)))
    world.finish()
    return world


SEEDS = range(40)


def test_random_traffic_gives_every_request_its_own_answer():
    worlds = [random_world(seed) for seed in SEEDS]
    assert sum(world.preemptions > 0 for world in worlds) >= 10
    assert set.union(*(world.cancelled_in for world in worlds)) >= {State.WAITING, State.PREFILL, State.DECODE}
    ends = [events[-1] for world in worlds for events in world.events.values()]
    finished = [end for end in ends if isinstance(end, Finished)]
    reasons = Counter(end.reasons[0] for end in finished)
    assert min(reasons[reason] for reason in FinishReason) >= 10
    assert len(finished) < len(ends), "no decode failed"
    assert sum(end.cache.resident > 0 for end in finished) >= 20
    assert sum(end.cache.ram > 0 for end in finished) >= 5
    assert sum(end.speculation.accepted > 5 for end in finished) >= 20


def take_out(scheduler, sequence):
    (scheduler.waiting if sequence.leaf is None else scheduler.running).remove(sequence)


def keep_the_id(self, sequence, *, keep=True):
    take_out(self, sequence)


def keep_the_cells(self, sequence, *, keep=True):
    take_out(self, sequence)
    if sequence.leaf is not None:
        self._kv._blocks.forget(sequence.leaf)
        self._kv._cells._tree.remove(sequence.leaf)


def keep_what_may_be_wrong(self, sequence, *, keep=True):
    take_out(self, sequence)
    if sequence.leaf is not None:
        self._kv.rest(sequence)


def preempt_the_oldest(self, _newest):
    oldest = self.running[0]
    self._leave(oldest, keep=True)
    oldest.lose_cells()
    self.waiting.append(oldest)


def lose_the_answer_too(self):
    self.leaf = self.restore = None
    del self.tokens[self.prompt_tokens :]


def reopen_the_sampler(self):
    self.leaf = self.restore = None
    self._sampler = type(self._sampler)(
        self.request.sampling, self._sampler._candidates, ByteTable.size, 4096, self.tokens
    )


def count_the_next_token_too(self, batch, _seconds):
    for piece in batch.slices:
        sequence, leaf = piece.sequence, piece.sequence.leaf
        self._cells.grow(leaf, sequence.tokens[leaf.length : leaf.length + piece.rows + 1])


def count_no_decoded_token(self, batch, _seconds):
    for piece in batch.slices:
        sequence, leaf = piece.sequence, piece.sequence.leaf
        self._cells.grow(leaf, sequence.tokens[leaf.length : sequence.prompt_tokens][: piece.rows])


def reuse_the_last_token(self, sequence):
    leaf = self._cells.begin(sequence.request.namespace, [*self._sharable(sequence.request, sequence.tokens), 0])
    if leaf is not None:
        sequence.admit(leaf)
    return leaf is not None


def reuse_whatever_is_asked(self, _sequence):
    return True


@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [
        (Scheduler, "release", keep_the_id),
        (Scheduler, "release", keep_the_cells),
        (Scheduler, "release", keep_what_may_be_wrong),
        (Scheduler, "_preempt", preempt_the_oldest),
        (Sequence, "lose_cells", lose_the_answer_too),
        (Sequence, "lose_cells", reopen_the_sampler),
        (SharedKv, "take", count_the_next_token_too),
        (SharedKv, "take", count_no_decoded_token),
        (SharedKv, "begin", reuse_the_last_token),
        (SharedKv, "shares", reuse_whatever_is_asked),
    ],
)
def test_random_traffic_notices_a_planted_fault(owner, method, fault, monkeypatch):
    run_alone.cache_clear()
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises((AssertionError, IndexError)):
        list(map(random_world, SEEDS))


class Traffic(RuleBasedStateMachine):
    """The same promises, with counterexamples made small."""

    def __init__(self):
        super().__init__()
        self.world = World(cells=200, sequence_ids=3, stored_blocks=4, drafter=Oracle(hashed_logits, wrong=0.4))

    @rule(
        common_tokens=st.sampled_from([0, 30, 70, 130]),
        own_tokens=st.integers(1, 199),
        max_tokens=st.none() | st.integers(1, 150),
        sampling=st.sampled_from([GREEDY, SEEDED, ENDLESS]),
        stop=st.sampled_from([(), ("abc", "xq")]),
        use_cache=st.booleans(),
        private=st.booleans(),
    )
    def submit(self, common_tokens, own_tokens, max_tokens, sampling, stop, use_cache, private):
        name = f"r{len(self.world.requests)}"
        prompt = (BEGINNINGS[0][:common_tokens] + letters(name, own_tokens))[:199]
        fields = {"max_tokens": max_tokens, "stop": stop, "use_cache": use_cache, "private": private}
        self.world.submit(ask(name, prompt, sampling, **fields))

    @precondition(lambda self: self.world.engine.busy)
    @rule(count=st.integers(1, 60))
    def steps(self, count):
        for _ in range(count):
            if self.world.engine.busy:
                self.world.step()

    @rule()
    def tidy(self):
        self.world.engine.tidy()

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data())
    def cancel(self, data):
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.requests))))

    @invariant()
    def holds(self):
        self.world.check()

    def teardown(self):
        self.world.finish()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
