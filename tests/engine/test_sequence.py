from collections import deque

import numpy as np
import pytest
from fakes import BOS, END_OF_TURN, EOS, USER_TAG, ByteTable, LiteralConstraint, text_of, tokens_of

from pinyon.engine.answer import Answer
from pinyon.engine.cache_report import CacheReport, Gap, Miss
from pinyon.engine.errors import NativeError
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason, Progress
from pinyon.engine.kv_blocks import Restore
from pinyon.engine.native import Candidates
from pinyon.engine.prefix_tree import Leaf, Node
from pinyon.engine.request import GenerateRequest, Grammar, Reasoning, SamplingParams, Text
from pinyon.engine.sampler import Sampler
from pinyon.engine.sequence import Sequence, State
from pinyon.engine.vocab import Vocab

PROMPT = b"hello"
VOCAB = Vocab(ByteTable())


def row(token):
    """Logits of one row, for this token."""
    logits = np.zeros((1, ByteTable.size), np.float32)
    logits[0, token] = 10
    return logits


def sequence(context_tokens=1000, computed=5, **fields):
    """A sequence that has computed that much of its prompt."""
    request = GenerateRequest("r", (Text(PROMPT.decode()),), SamplingParams(temperature=0), **fields)
    sampler = Sampler(request.sampling, Candidates(ByteTable.size), ByteTable.size, 4096, list(PROMPT))
    made = Sequence(request, list(PROMPT), VOCAB, sampler, context_tokens)
    made.admit(leaf())
    compute(made, computed)
    return made


def leaf(held=0):
    """A leaf that holds that many tokens."""
    return Leaf(0, Node(None, 0, [0] * held))


def compute(made, rows):
    """Compute the sequence's next tokens; return its events."""
    made.leaf.node.run += made.tokens[made.computed : made.computed + rows]
    return made.progress()


def with_end(made, events):
    """The events of a sequence that is alone in its answer."""
    return [*events, Answer([made], 0.0).finished()] if made.done else events


def say(made, tokens):
    """Take tokens one by one until the sequence ends."""
    events = []
    for token in tokens:
        if not made.done:
            events += made.take(row(token))
    return with_end(made, events)


def end_by_eog(made):
    return with_end(made, made.take(row(END_OF_TURN)))


def end_by_cancel(made):
    return with_end(made, made.finish(FinishReason.CANCELLED))


def end_by_failure(made):
    return [*made.fail(), NativeError("decode failed").as_event()]


ENDINGS = [end_by_eog, end_by_cancel, end_by_failure]


@pytest.mark.parametrize("end", ENDINGS)
def test_a_stop_that_never_completes_is_shown_whatever_ends_the_answer(end):
    made = sequence(stop=("END.",))
    events = say(made, b"the END")
    assert text_of(events) == "the "
    events += end(made)
    assert text_of(events) == "the END"
    assert tokens_of(events) == list(b"the END")


def test_a_stop_that_never_completes_is_shown_at_the_length_limit():
    events = say(sequence(stop=("END.",), max_tokens=7), b"the END")
    assert text_of(events) == "the END"
    assert events[-1].reasons == (FinishReason.LENGTH,)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_cut_off_character_is_one_replacement_character_whatever_ends_the_answer(end):
    made = sequence()
    events = say(made, "ok 🫠".encode()[:-1])
    assert text_of(events) == "ok "
    assert text_of(events + end(made)) == "ok \ufffd"


@pytest.mark.parametrize("end", ENDINGS)
def test_exactly_the_last_event_is_terminal(end):
    made = sequence()
    events = say(made, b"abc") + end(made)
    assert [isinstance(event, Finished | Failed) for event in events] == [False] * 3 + [True]
    assert made.state is State.DONE


@pytest.mark.parametrize("token", [EOS, END_OF_TURN])
def test_every_end_of_generation_token_ends_the_answer_unseen_and_uncounted(token):
    events = say(sequence(logprobs=0), [*b"ab", token])
    assert (text_of(events), tokens_of(events)) == ("ab", list(b"ab"))
    finished = events[-1]
    assert finished.reasons == (FinishReason.STOP,)
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 2)
    assert sum(len(event.logprobs) for event in events if isinstance(event, Chunk)) == 2


def test_an_end_that_is_ignored_is_counted_but_not_shown():
    events = say(sequence(ignore_eos=True, max_tokens=4), [97, EOS, 98, END_OF_TURN, 99])
    assert (text_of(events), tokens_of(events)) == ("ab", [97, EOS, 98, END_OF_TURN])
    assert events[-1].reasons == (FinishReason.LENGTH,)
    assert events[-1].usage.completion_tokens == 4


def test_an_answer_that_ends_at_once_is_empty():
    events = say(sequence(), [END_OF_TURN])
    assert [type(event) for event in events] == [Finished]
    assert events[0].usage.completion_tokens == 0


def test_control_tokens_that_do_not_end_the_answer_are_counted_but_not_shown():
    events = say(sequence(), [97, BOS, 98, USER_TAG, END_OF_TURN])
    assert text_of(events) == "ab<tool>"
    assert tokens_of(events) == [97, BOS, 98, USER_TAG]
    assert events[-1].usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (("beta gamma",), "alpha "),
        (("ta ga", "beta gamma"), "alpha be"),
        (("alpha",), ""),
        (("zzz",), "alpha beta gamma delta"),
    ],
)
def test_text_ends_before_a_stop_string(stops, text):
    events = say(sequence(stop=stops), [*b"alpha beta gamma delta", END_OF_TURN])
    assert text_of(events) == text
    assert events[-1].reasons == (FinishReason.STOP,)


def test_tokens_of_the_stop_string_are_counted():
    events = say(sequence(stop=("cd",)), b"abcdef")
    assert events[-1].usage.completion_tokens == 4
    assert tokens_of(events) == list(b"abcd")


def test_a_stop_completed_by_the_last_allowed_token_is_a_stop():
    events = say(sequence(stop=("cd",), max_tokens=4), b"abcdef")
    assert (text_of(events), events[-1].reasons) == ("ab", (FinishReason.STOP,))


@pytest.mark.parametrize(
    ("max_tokens", "context", "limit"), [(3, 1000, 3), (1, 1000, 1), (None, 12, 7), (100, 12, 7), (7, 12, 7)]
)
def test_the_answer_ends_at_max_tokens_or_where_the_context_does(max_tokens, context, limit):
    events = say(sequence(max_tokens=max_tokens, context_tokens=context), b"a" * 100)
    assert text_of(events) == "a" * limit
    assert events[-1].reasons == (FinishReason.LENGTH,)
    assert events[-1].usage.completion_tokens == limit


@pytest.mark.parametrize("text", ["ok 🫠 fin", "你好", "👩‍👩‍👧", "e\u0301\u0323"])
def test_characters_of_several_tokens_come_whole(text):
    events = say(sequence(), [*text.encode(), END_OF_TURN])
    assert text_of(events) == text
    assert not any("\ufffd" in event.text for event in events if isinstance(event, Chunk))
    assert tokens_of(events) == list(text.encode())


def test_logprobs_come_once_for_each_token_with_its_raw_bytes():
    text = "a🫠b"
    events = say(sequence(logprobs=2), [*text.encode(), END_OF_TURN])
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert [len(chunk.logprobs) for chunk in chunks] == [len(chunk.token_ids) for chunk in chunks] == [1, 4, 1]
    positions = [position for chunk in chunks for position in chunk.logprobs]
    assert [position.chosen.raw for position in positions] == [bytes([byte]) for byte in text.encode()]
    assert all(position.top[0] == position.chosen and len(position.top) == 2 for position in positions)


def test_logprobs_are_the_model_s_own_whatever_the_sampling():
    request = GenerateRequest(
        "r", (Text("hello"),), SamplingParams(temperature=0, logit_bias=((98, 100.0),)), logprobs=1
    )
    sampler = Sampler(request.sampling, Candidates(ByteTable.size), ByteTable.size, 4096, list(PROMPT))
    (chunk,) = Sequence(request, list(PROMPT), VOCAB, sampler, 100).take(row(97))
    (position,) = chunk.logprobs
    assert (position.chosen.token, position.top[0].token) == (98, 97)
    assert position.top[0].logprob - position.chosen.logprob == pytest.approx(10)


def test_without_logprobs_none_are_computed():
    assert all(not event.logprobs for event in say(sequence(), b"ab"))


def test_states_follow_what_is_computed():
    made = sequence()
    assert made.state is State.PREFILL
    say(made, b"a")
    assert made.state is State.DECODE
    made.lose_cells()
    assert (made.state, made.uncomputed, made.computed) == (State.WAITING, 6, 0)
    made.admit(leaf())
    assert made.state is State.PREFILL
    compute(made, 5)
    assert made.state is State.DECODE
    end_by_cancel(made)
    assert made.state is State.DONE


def test_the_last_token_of_a_prompt_is_not_decoding():
    made = sequence()
    made.lose_cells()
    made.admit(leaf())
    compute(made, len(PROMPT) - 1)
    assert (made.uncomputed, made.state) == (1, State.PREFILL)


def test_progress_counts_the_prompt_s_tokens():
    made = sequence(computed=0)
    assert compute(made, 2) + compute(made, 3) == [Progress(2, 5), Progress(5, 5)]


def test_a_decode_step_is_no_progress():
    made = sequence()
    say(made, b"a")
    assert compute(made, 1) == []


def test_no_progress_is_reported_again_while_a_preempted_sequence_is_recomputed():
    made = sequence()
    say(made, b"a")
    made.lose_cells()
    made.admit(leaf())
    assert compute(made, 6) == []


def begun(held, ram=0, disk=0):
    """A sequence that found tokens in the context, and gets others back."""
    made = sequence(computed=0)
    made.admitted = None
    restore = Restore(leaf(held), deque())
    made.admit(restore.leaf, restore)
    restore.leaf.node.run += [0] * (ram + disk)
    restore.ram_tokens, restore.disk_tokens = ram, disk
    return made


def test_what_was_there_is_progress_and_told_apart():
    made = begun(1, 2, 1)
    assert made.progress() == [Progress(4, 5, 4)]
    assert compute(made, 1) == [Progress(5, 5, 4)]
    finished = say(made, [END_OF_TURN])[-1]
    assert finished.usage.cached_tokens == 4
    assert finished.cache == CacheReport(resident=1, ram=2, disk=1)


def test_what_a_preempted_sequence_finds_is_not_counted():
    made = begun(1, 2)
    compute(made, 2)
    say(made, b"a")
    made.lose_cells()
    made.admit(leaf(5), Restore(leaf(5), deque(), ram_tokens=5))
    assert (made.cached_tokens, made.cache_report().cached) == (3, 3)


def test_a_sequence_waits_while_blocks_come_back():
    made = sequence(computed=0)
    restore = Restore(made.leaf, deque([None]))
    made.admit(made.leaf, restore)
    assert made.state is State.RESTORE
    restore.hits.clear()
    assert made.state is State.PREFILL
    made.lose_cells()
    assert made.state is State.WAITING


@pytest.mark.parametrize(
    ("resident", "stored", "told"),
    [
        (Gap(Miss.NEW, 0), None, Miss.NEW),
        (Gap(Miss.NEW, 0), Gap(Miss.EVICTED, 0), Miss.EVICTED),
        (Gap(Miss.DIVERGED, 0), Gap(Miss.NEW, 0), Miss.DIVERGED),
        (Gap(Miss.NEW, 0), Gap(Miss.DIVERGED, 0), Miss.DIVERGED),
        (Gap(Miss.DIVERGED, 0), Gap(Miss.UNREADABLE, 0), Miss.UNREADABLE),
        (Gap(Miss.DIVERGED, 0), Gap(Miss.NEW, 2), Miss.NEW),
        (Gap(Miss.NEW, 2), Gap(Miss.EVICTED, 1), Miss.NEW),
        (Gap(Miss.UNAVAILABLE, 0), Gap(Miss.DIVERGED, 0), Miss.UNAVAILABLE),
        (Gap(Miss.UNAVAILABLE, 0), Gap(Miss.EVICTED, 0), Miss.EVICTED),
    ],
)
def test_the_report_tells_what_is_known_of_the_first_token_that_was_computed(resident, stored, told):
    made = sequence(computed=0)
    made.admitted = None
    made.admit(leaf(), Restore(leaf(), deque(), gap=stored), resident)
    report = made.cache_report()
    assert (report.miss, report.position) == (told, max(gap.position for gap in (resident, stored) if gap))


def test_where_nothing_is_missing_the_report_gives_no_reason():
    made = sequence(computed=0)
    made.admitted = None
    made.admit(leaf(4), None, Gap(Miss.NEW, 4))
    assert made.cache_report() == CacheReport(resident=4)


def test_times_are_not_negative_even_before_admission():
    request = GenerateRequest("r", (Text("hello"),))
    sampler = Sampler(request.sampling, Candidates(ByteTable.size), ByteTable.size, 4096, list(PROMPT))
    (finished,) = end_by_cancel(Sequence(request, list(PROMPT), VOCAB, sampler, 100))
    assert min(finished.timings.queue_s, finished.timings.prefill_s, finished.timings.decode_s) >= 0


def test_the_seed_that_was_used_is_reported():
    def reported(seed):
        request = GenerateRequest("r", (Text("hello"),), SamplingParams(seed=seed))
        sampler = Sampler(request.sampling, Candidates(ByteTable.size), ByteTable.size, 4096, list(PROMPT))
        return end_by_cancel(Sequence(request, list(PROMPT), VOCAB, sampler, 100))[-1].seed

    assert reported(42) == 42
    assert reported(None) != reported(None)


CUT_TAG = 1


class MergedTable(ByteTable):
    """Token 1 ends the thoughts and begins the answer."""

    def piece(self, token):
        return b"</think>{" if token == CUT_TAG else super().piece(token)


def thinking_sequence(literal, **fields):
    """A sequence inside of thoughts, with a grammar for what follows."""
    tags = Reasoning("<think>", ("</think>",), opened=True)
    request = GenerateRequest("r", (Text("hello"),), SamplingParams(temperature=0), reasoning=tags, **fields)
    sampler = Sampler(request.sampling, Candidates(ByteTable.size), ByteTable.size, 4096, list(PROMPT))
    constraint = LiteralConstraint(Grammar(literal))
    return Sequence(request, list(PROMPT), Vocab(MergedTable()), sampler, 100, constraint=constraint)


@pytest.mark.parametrize("stops", [(), ("{{",), ("{}!",)])
def test_a_token_that_ends_thoughts_begins_the_grammar(stops):
    events = say(thinking_sequence("{}", stop=stops), [*b"hm", CUT_TAG, *b"xxx"])
    assert (text_of(events), "".join(event.reasoning for event in events[:-1])) == ("{}", "hm")
    assert events[-1].reasons == (FinishReason.STOP,)


def test_a_stop_string_behind_the_end_of_thoughts_ends_the_answer_before_the_grammar_is_asked():
    events = say(thinking_sequence("[]", stop=("{",)), [CUT_TAG])
    assert (text_of(events), events[-1].reasons) == ("", (FinishReason.STOP,))


def test_the_text_of_a_token_that_the_grammar_cannot_take_is_shown_before_the_failure():
    made = thinking_sequence("[]")
    events = say(made, b"hm")
    with pytest.raises(NativeError, match="does not fit"):
        made.take(row(CUT_TAG))
    assert text_of(events + made.fail()) == "{"


def test_a_model_that_ends_its_turn_in_thoughts_goes_on_where_a_grammar_awaits_the_answer():
    def tired(wish):
        logits = row(END_OF_TURN)
        logits[0, wish] = 9
        return logits

    made = thinking_sequence("{}")
    events = []
    while not made.done:
        events += made.take(tired(CUT_TAG))
    assert text_of(with_end(made, events)) == "{}"
