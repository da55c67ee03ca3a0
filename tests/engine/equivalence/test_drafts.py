"""Answers with drafts on real models: each token has the probability that it has without, and the KV of what did not come true is gone."""

from random import Random

import numpy as np
import pytest
from asking import end_of, ids_of
from watched_room import OTHER, PROMPT

from pinyon.engine import speculation
from pinyon.engine.draft_depth import Depths
from pinyon.engine.drafters import Proposal
from pinyon.engine.events import Chunk, Finished
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.request import SamplingParams, Speculate
from pinyon.engine.shared_kv import SharedKv

pytestmark = pytest.mark.model

TOKENS = 60
ANSWER = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 20}


class Recorded:
    """A drafter that has heard an answer, and is wrong now and then. Drafts have up to nine tokens."""

    name = "recorded"

    def __init__(self, heard, wrong):
        self._heard, self._wrong, self._random = heard, wrong, Random(0)

    def propose(self, sequence, limit):
        at = sequence.completion_tokens
        known = self._heard[at : at + min(limit, self._random.randint(0, 9))]
        drafted = [self._random.randrange(10, 250) if self._random.random() < self._wrong else token for token in known]
        return Proposal(drafted, np.ones(len(drafted)))

    def took(self, sequence, tokens): ...
    def ended(self, sequence): ...
    def forget(self): ...


def whole(chances, _seconds, *, rows, limit_s):
    """All that is proposed, as far as there are rows."""
    return Depths([min(len(each), rows) for each in chances], 1.0, 1.0)


def hear(room, drafter, monkeypatch):
    monkeypatch.setattr(speculation, "depths", whole)
    room.engine._scheduler.speculation = speculation.Speculation(drafter, outputs=16)


def positions(events):
    return [position for event in events if isinstance(event, Chunk) for position in event.logprobs]


def furthest(room, prompt, events):
    """Return how far an answer's log probabilities are at most from those that each of its tokens has after a prompt of all before."""
    tokens, distance = ids_of(events), 0.0
    for at, position in enumerate(positions(events)):
        (alone,) = positions(room.events([*prompt, *tokens[:at]], **{**ANSWER, "max_tokens": 1, "use_cache": False}))
        told = {each.token: each.logprob for each in alone.top}
        distance = max(
            distance, *(abs(each.logprob - told[each.token]) for each in position.top[:5] if each.token in told)
        )
        assert position.chosen.token in told
    return distance


def held(room):
    """Raise AssertionError where the context holds other positions than the index says."""
    for leaf in room.kv._cells._tree.leaves:
        for sequence_id in room.kv._cells.ids_of(leaf.sequence_id):
            assert room.loaded.context.last_position(sequence_id) == leaf.length - 1


def held_after(room, prompt):
    end = room.ask(prompt, **ANSWER)
    assert isinstance(end, Finished), "the decode failed"
    held(room)


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_a_drafted_answer_s_tokens_have_the_probabilities_of_plain_ones(any_room, wrong, monkeypatch):
    prompt = PROMPT[:100]
    plain = any_room.events(prompt, **ANSWER, speculate=Speculate.OFF, use_cache=False)
    noise = furthest(any_room, prompt, plain)
    assert noise > 0, "then shapes make no difference here, and equality could be asked for"
    hear(any_room, Recorded(ids_of(plain), wrong), monkeypatch)
    drafted = any_room.events(prompt, **ANSWER)
    report = end_of(drafted).speculation
    assert report.accepted > 15
    assert report.accepted < report.drafted or not wrong
    held(any_room)
    assert furthest(any_room, prompt, drafted) <= 2 * noise
    again = any_room.ask([*prompt, *ids_of(drafted), 7], max_tokens=1)
    assert again.usage.cached_tokens == len(prompt) + TOKENS - 1, "what was accepted is there for the next turn"
    assert any_room.witness.hits["resident"]


@pytest.mark.parametrize(("owner", "method"), [(KvCells, "cut"), (SharedKv, "checked")])
def test_kv_that_stays_although_it_did_not_come_true_is_noticed(any_room, owner, method, monkeypatch):
    hear(any_room, Recorded(OTHER, 1.0), monkeypatch)
    monkeypatch.setattr(owner, method, lambda *_arguments: None)
    with pytest.raises(AssertionError):
        held_after(any_room, PROMPT[:100])
    monkeypatch.undo()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_side_by_side_with_drafts_each_get_their_own(any_room, temperature, monkeypatch):
    """Teacher-forced, as above, for one of several that run at once and draft in vain half of the time."""
    prompt, sampling = PROMPT[:80], SamplingParams(temperature=temperature, seed=3)
    plain = any_room.events(prompt, **ANSWER, sampling=sampling, speculate=Speculate.OFF, use_cache=False)
    noise = furthest(any_room, prompt, plain)
    hear(any_room, Recorded(ids_of(plain), 0.3), monkeypatch)
    for number in range(3):
        any_room.submit(f"{number}", OTHER[number : number + 40], ignore_eos=True, max_tokens=40)
    drafted = any_room.events(prompt, **ANSWER, sampling=sampling)
    assert end_of(drafted).speculation.accepted > 10
    while any_room.engine.busy:
        any_room.engine.step()
    held(any_room)
    assert furthest(any_room, prompt, drafted) <= 2 * noise
