"""What is foretold of a request is what it finds, and to ask changes nothing: of all that is kept, and of what would leave first."""

import random

import pytest
from fake_disk import FakeDisk
from fakes import BLOCK_BYTES, assert_idle, cached, make_engine, make_store, run_to_end, submit, text_of, tidied
from kept_kv import LONG_AGO, kept_engine
from kv_compare import MOVE_S, ROW_S, StatefulMemory
from kv_memory import Cell

from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import ContextOverflowError, InvalidRequestError
from pinyon.engine.estimate import Estimate
from pinyon.engine.kv_blocks import Missing
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.shared_kv import SharedKv

GREEDY = SamplingParams(temperature=0)
ABC = "".join(f"{number:03}," for number in range(100))
"""A prompt of 400 tokens that is nowhere like itself."""


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), GREEDY, **{"max_tokens": 8, **fields})


def estimate(engine, request):
    return engine.estimate(engine.prepare(request))


def tier_state(tier):
    places = [(block.key, place.size_bytes, place.used) for block, place in tier._places.items()]
    heap = [(rank, use, push, block.key) for rank, use, push, block in tier._heap]
    return tier.used_bytes, places, heap, repr(tier._uses), repr(tier._pushes), tier._bar, {**tier._holds}


def state_of(made):
    """Everything that decides what is kept and what leaves first, and all of the memory."""
    store, cells, blocks = made.kv._store, made.kv._cells, made.kv._blocks
    leaves = [
        (
            leaf.sequence_id,
            leaf.tokens(),
            leaf.in_use,
            leaf.rent_from_s,
            leaf.used_at,
            leaf.conversation,
            leaf.node.start,
        )
        for leaf in cells._tree.leaves
    ]
    kept = [(block.key, block.tokens, block.conversations, block.payload) for block in store._blocks()]
    waiting = [
        {block.key: since for block, since in store._unwritten.items()},
        {leaf.sequence_id: block.key for leaf, block in blocks._stored.items()},
        [*store._evicted],
        [*store._noted],
    ]
    held = [Cell(cell.position, cell.token, {*cell.ids}) for cell in made.runner.memory.cells]
    states = {**made.runner.memory.states} if isinstance(made.runner.memory, StatefulMemory) else None
    queues = [*made.scheduler.running], [*made.scheduler.waiting]
    return leaves, kept, waiting, held, states, queues, [tier_state(tier) for tier in (store._ram, store._files)]


def check(made, request):
    """Run a request; return what was foretold, after checking that it is what is found, and that asking has changed nothing."""
    return checked(made, request)[0]


def checked(made, request):
    """As `check`; return the answer's text, too."""
    before = state_of(made)
    foretold = estimate(made.engine, request)
    assert state_of(made) == before, "asking has changed something"
    events = run_to_end(made.engine, request)[request.id]
    assert (foretold.resident, foretold.ram, foretold.disk) == cached(events[-1])
    assert foretold.prompt_tokens == events[-1].usage.prompt_tokens
    assert_idle(made)
    return foretold, text_of(events)


# Where it is


def test_of_an_unknown_prompt_nothing_is_there():
    made = make_engine(cells=1024, store=make_store())
    assert check(made, ask("a", ABC[:150])) == Estimate(150, compute_s=CostModel().alone_s(150))


def test_what_is_in_the_context_in_ram_and_on_disk_is_told_apart():
    disk = FakeDisk()
    made = make_engine(cells=1024, store=make_store(disk=disk))
    check(made, ask("a", ABC[:150]))
    resident = check(made, ask("b", ABC[:150]))
    assert (resident.resident, resident.ram, resident.disk) == (149, 0, 0)
    tidied(made)
    made = make_engine(cells=1024, store=made.kv._store)
    ram = check(made, ask("c", ABC[:150]))
    assert (ram.resident, ram.ram, ram.disk) == (0, 149, 0)
    made.engine.close()
    made = make_engine(cells=1024, store=make_store(disk=disk))
    stored = check(made, ask("d", ABC[:150]))
    assert (stored.resident, stored.ram, stored.disk) == (0, 0, 149)
    assert {each.cached for each in (resident, ram, stored)} == {149}
    assert check(made, ask("e", ABC[:200])).resident == 150


def test_seconds_are_those_that_were_measured():
    made = make_engine(cells=1024, store=make_store())
    made.kv._costs.measure_restore(BLOCK_BYTES, MOVE_S)
    check(made, ask("a", ABC[:128]))
    tidied(made)
    made.kv.make_room(1024)
    foretold = estimate(made.engine, ask("b", ABC[:300]))
    assert (foretold.ram, foretold.is_measured) == (128, True)
    assert foretold.compute_s == pytest.approx(172 * ROW_S, rel=0.3)
    assert foretold.restore_s == pytest.approx(2 * MOVE_S)


@pytest.mark.parametrize("is_stateful", [False, True])
def test_what_is_not_worth_bringing_back_is_computed(is_stateful):
    costs = CostModel()
    made = make_engine(cells=1024, store=make_store(), costs=costs, is_stateful=is_stateful)
    check(made, ask("a", ABC[:150]))
    tidied(made)
    made.kv.make_room(1024)
    costs.measure_restore(BLOCK_BYTES, 1e9)
    assert check(made, ask("b", ABC[:150])).cached == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (149, 0, 0)),
        ({"private": True}, (149, 0, 0)),
        ({"use_cache": False}, (0, 0, 0)),
        ({"namespace": "another"}, (0, 0, 0)),
        ({"deterministic": True}, (0, 0, 0)),
    ],
    ids=str,
)
def test_what_a_request_may_use_counts(fields, expected):
    made = make_engine(cells=1024, store=make_store())
    check(made, ask("a", ABC[:150]))
    tidied(made)
    foretold = check(made, ask("b", ABC[:150], **fields))
    assert (foretold.resident, foretold.ram, foretold.disk) == expected


def test_a_deterministic_request_gets_what_others_of_its_kind_have_left():
    made = make_engine(cells=1024, store=make_store())
    check(made, ask("a", ABC[:150], deterministic=True))
    assert check(made, ask("b", ABC[:150], deterministic=True)).ram == 128


def test_a_prompt_that_fails_is_not_estimated():
    engine = make_engine(cells=64).engine
    with pytest.raises(ContextOverflowError, match="the prompt has 100 tokens"):
        estimate(engine, ask("a", ABC[:100]))
    with pytest.raises(InvalidRequestError, match="empty"):
        estimate(engine, ask("a", ""))


def test_while_others_compute_it_is_told_between_steps():
    made = make_engine(cells=1024, store=make_store())
    submit(made.engine, ask("a", ABC[:300], max_tokens=50))
    while made.engine.busy:
        made.engine.step()
        before = state_of(made)
        foretold = estimate(made.engine, ask("b", ABC[:400]))
        assert state_of(made) == before
        held = made.kv._cells._tree.leaves[0].length if made.kv._cells._tree.leaves else 0
        assert foretold.resident == min(held, 300)


# Whatever came before


def at_random(made, randomly, *, fields, restarted):
    """Prompts that begin alike, go on, branch and come back."""
    known = [ABC[:length] for length in (64, 100, 128, 200)]
    for number in range(25):
        before = randomly.choice(known)
        cut = before[: randomly.choice([len(before), max(1, len(before) - 20), 64, 128])]
        prompt = (cut + randomly.choice(["", "x", "more", ABC[5:80]]))[:300]
        request = ask(f"r{number}", prompt, **randomly.choice(fields))
        _, text = checked(made, request)
        known.append(prompt + text)
        if randomly.random() < 0.3:
            tidied(made)
        if randomly.random() < 0.2:
            made = restarted(made)


FIELDS = [{}, {}, {}, {"private": True}, {"use_cache": False}, {"namespace": "n"}, {"conversation": "c"}]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [{}, {"window": 20}, {"window": 100}, {"is_stateful": True}], ids=str)
def test_whatever_came_before_what_is_foretold_is_found(kind, seed):
    disk, randomly = FakeDisk(), random.Random(seed)

    def restarted(made):
        made.engine.close()
        store = made.kv._store if randomly.random() < 0.5 else make_store(disk=disk)
        return make_engine(cells=1024, store=store, **kind)

    fields = FIELDS if "is_stateful" in kind else [*FIELDS, {"deterministic": True}]
    made = make_engine(cells=1024, store=make_store(disk=disk), **kind)
    at_random(made, randomly, fields=fields, restarted=restarted)


def foretells_more(self, right, request, tokens):
    kept, usable, hits = right(self, request, tokens)
    return Missing(kept, usable + 1, hits[:-1])


def touches_a_block(self, right, request, tokens):
    self._store.touch(next(self._store._blocks()))
    return right(self, request, tokens)


def takes_a_sequence_id(self, right, request, tokens):
    self._cells.begin(request.namespace, tokens)
    return right(self, request, tokens)


def lets_go_what_is_idle(self, right, request, tokens):
    self._cells.make_room(self._cells.cells)
    return right(self, request, tokens)


@pytest.mark.parametrize(
    "fault",
    [foretells_more, touches_a_block, takes_a_sequence_id, lets_go_what_is_idle],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_found(monkeypatch, fault):
    made = make_engine(cells=1024, store=make_store())
    check(made, ask("a", ABC[:150]))
    tidied(made)
    right = SharedKv._expected
    monkeypatch.setattr(SharedKv, "_expected", lambda self, request, tokens: fault(self, right, request, tokens))
    with pytest.raises(AssertionError):
        check(made, ask("b", ABC[:150]))


# A real model


@pytest.mark.model
def test_a_real_model_finds_what_was_foretold_in_the_context_in_ram_and_on_disk(tiny, tmp_path):
    def check_real(made, prompt):
        request = GenerateRequest("a", (Text(prompt),), GREEDY, 8)
        foretold = estimate(made.engine, request)
        assert foretold == estimate(made.engine, request)
        report = made.ask(prompt).end.cache
        assert (foretold.resident, foretold.ram, foretold.disk) == (report.resident, report.ram, report.disk)
        return foretold

    folder = tmp_path / "kv"
    with kept_engine(tiny, folder) as made:
        assert check_real(made, LONG_AGO).cached == 0
        assert check_real(made, LONG_AGO).resident == len(LONG_AGO) - 1
        made.tidy()
        made.engine._kv.make_room(made.engine.context_tokens)
        assert check_real(made, f"{LONG_AGO[:150]}?").ram == 150
    with kept_engine(tiny, folder) as made:
        found = check_real(made, LONG_AGO)
        assert (found.disk, found.is_measured) == (len(LONG_AGO) - 1, False)
