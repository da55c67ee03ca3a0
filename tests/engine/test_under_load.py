"""The engine in simulated time: thousands of requests that come at random, on a machine that follows nobody's formula."""

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from simulated_load import Load, Machine

from pinyon.engine.admission import Admission
from pinyon.engine.config import Limits
from pinyon.engine.events import FailureKind
from pinyon.engine.fair_share import ANSWER_WEIGHT, PROMPT_WEIGHT
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.request import Priority
from pinyon.engine.scheduler import PATIENCE_S, Scheduler
from pinyon.engine.sequence import State
from pinyon.engine.step_budget import Step, StepBudget

BATCH = Priority.BATCH
FEW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(FEW, max_examples=3000)

ARRIVAL = some.fixed_dictionaries(
    {
        "after_s": some.floats(0, 3),
        "client": some.sampled_from(["a", "b", "c"]),
        "prompt_tokens": some.integers(1, 400),
        "answer_tokens": some.integers(1, 60),
        "shared": some.integers(0, 100),
        "n": some.sampled_from([1, 1, 1, 2]),
        "priority": some.sampled_from([Priority.INTERACTIVE, Priority.INTERACTIVE, BATCH]),
        "deadline_s": some.sampled_from([None, None, 2.0]),
        "deterministic": some.sampled_from([False] * 9 + [True]),
        "use_cache": some.sampled_from([True, True, False]),
        "leaves_after_s": some.sampled_from([None, None, None, 0.0, 1.0, 5.0]),
    }
)
TRAFFIC = some.fixed_dictionaries(
    {
        "arrivals": some.lists(ARRIVAL, min_size=1, max_size=25),
        "cells": some.integers(470, 2000),
        "ids": some.integers(1, 12),
        "blocks": some.sampled_from([0, 5, 1000]),
        "seed": some.integers(0, 1000),
    }
)


def under(traffic):
    """Return the load after all of a traffic has ended; its books are looked through after every step."""
    load = Load(
        Machine(traffic["seed"], outliers=0.01, drift=0.2),
        cells=traffic["cells"],
        ids=traffic["ids"],
        blocks=traffic["blocks"],
        checked=True,
    )
    leaving = []
    for arrival in traffic["arrivals"]:
        details = {key: value for key, value in arrival.items() if key not in {"after_s", "leaves_after_s"}}
        details["shared"] = min(details["shared"], details["prompt_tokens"] - 1)
        until = load.now + arrival["after_s"]
        while leaving and leaving[0][0] <= until:
            at_s, asked = leaving.pop(0)
            load.run_until(at_s)
            load.cancel(asked)
        load.run_until(until)
        asked = load.ask(**details)
        if arrival["leaves_after_s"] is not None and asked.refused is None:
            leaving.append((load.now + arrival["leaves_after_s"], asked))
            leaving.sort(key=lambda each: each[0])
    for at_s, asked in leaving:
        load.run_until(at_s)
        load.cancel(asked)
    load.finish()
    return load


def check(load):
    for asked in load.asked:
        if asked.refused is not None:
            assert asked.request.ttft_deadline_s is not None
        else:
            assert asked.ended is not None
            assert asked.is_whole or "cancelled" in asked.ended.reasons, "an answer is not whole"
        assert asked.token_s == sorted(asked.token_s)
    load.scheduler.check()
    assert (load.kv.held_cells, load.scheduler.running, load.scheduler.waiting) == (0, [], [])


def end(load):
    load.finish()
    check(load)


@FEW
@given(TRAFFIC)
def test_every_request_ends_once_with_all_of_its_answer(traffic):
    check(under(traffic))


@pytest.mark.long
@pytest.mark.timeout(3600)
@MANY
@given(TRAFFIC)
def test_every_request_ends_once_in_thousands_of_traffics(traffic):
    check(under(traffic))


# While somebody reads


def check_readers(load, readers, from_s, until_s, tolerance=1.1):
    """Check that each reader got a token in each step, and that hardly one of them took longer than it should."""
    steps = [step for step in load.steps if from_s <= step.at_s < until_s]
    assert len(steps) > 50
    assert {(step.readers, step.read) for step in steps} == {(readers, readers)}, "somebody was skipped"
    over = sum(step.true_s > tolerance * max(0.15, 2 * step.bare_s) for step in steps)
    assert over <= 0.02 * len(steps), f"{over} of {len(steps)} steps took too long"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("readers", [1, 4, 8])
@pytest.mark.parametrize("passing", [0.0, 0.06, 1.0])
def test_a_long_prompt_does_not_stall_those_who_read(seed, readers, passing):
    load = Load(Machine(seed, passing=passing), cells=16_000)
    for _ in range(readers):
        load.ask(answer_tokens=4000)
    load.run_until(5)
    long = load.ask("other", 6000, 5)
    while not long.token_s:
        load.step()
    check_readers(load, readers, long.came_s, long.token_s[0])


@pytest.mark.parametrize("readers", [1, 4])
def test_what_the_bound_leaves_is_used(readers):
    """The prompt is no more than a little later than with the best fixed chunk that keeps the same bound."""
    load = Load(cells=16_000)
    for _ in range(readers):
        load.ask(answer_tokens=1000)
    load.run_until(5)
    long = load.ask("other", 4000, 1)
    load.run_until(200)

    def step_s(rows, begun):
        ends = [150] * readers + [begun + row for row in range(1, rows + 1)]
        return load.machine.true_s(ends, begun + 150 * readers)

    kept = [rows for rows in range(1, 512) if step_s(rows, 4000) <= max(0.15, 2 * step_s(0, 4000))]
    best_s = min(sum(step_s(rows, begun) for begun in range(0, 4000, rows)) for rows in kept)
    assert long.ttft_s <= 1.15 * best_s


def test_what_comes_back_from_ram_is_answered_in_the_same_step_beside_others():
    load = Load()
    load.ask("first", 200, 1, shared=200)
    load.finish()
    load.kv.make_room(4096)
    reader = load.ask("reader", 50, 100)
    load.run_until(load.now + 1)
    assert reader.token_s
    again = load.ask("again", 200, 5, shared=200)
    load.step()
    assert (len(again.token_s), load.steps[-1].prompt_rows) == (1, 1)


def test_alone_a_prompt_is_computed_in_the_quickest_steps_that_are_not_too_long():
    load = Load(cells=16_000)
    load.ask(prompt_tokens=4000, answer_tokens=1)
    load.finish()
    assert all(step.true_s <= 0.55 for step in load.steps[5:])
    assert load.steps[8].prompt_rows >= 128


# Fairness


def backlogged(load, sizes, seed=0, backlog=6):
    """Keep several requests of each client waiting all the time; yield after each step."""
    chance, open_ = random.Random(seed), []
    while True:
        open_ = [asked for asked in open_ if asked.ended_s is None]
        for client, (prompt, answer) in sizes.items():
            while sum(asked.request.client == client for asked in open_) < backlog:
                open_.append(load.ask(client, chance.randint(1, prompt), chance.randint(1, answer)))
        load.step()
        yield


UNEQUAL = {"a": (600, 50), "b": (20, 20)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [{"a": (400, 100), "b": (400, 100)}, {"a": (1000, 10), "b": (10, 150)}, UNEQUAL])
def test_between_two_who_always_want_more_service_differs_by_a_bound_that_does_not_grow(sizes, seed):
    ids = 4
    load = Load(Machine(seed), cells=16_000, ids=ids)
    prompt, answer = (max(lengths) for lengths in zip(*sizes.values(), strict=True))
    bound = 2 * max(PROMPT_WEIGHT * prompt, ANSWER_WEIGHT * ids * (prompt + answer))
    for _ in backlogged(load, sizes, seed):
        assert abs(load.service["a"] - load.service["b"]) <= bound
        if load.service["a"] + load.service["b"] > 4 * bound:
            break


@pytest.mark.parametrize("room", [{"ids": 8}, {"cells": 3000}], ids=["few ids", "few cells"])
def test_whoever_floods_the_queue_leaves_room_for_another_one_s_request(room):
    load = Load(**room)
    flood = backlogged(load, {"flood": (200, 100)}, backlog=32)
    for _ in range(60):
        next(flood)
    for _ in range(6):
        single = load.ask("single", 100, 10)
        next(flood)
        assert single.is_running, "it waited for the end of somebody else's answer"
        while single.ended_s is None:
            next(flood)


def test_idling_saves_nothing_up():
    load = Load(ids=2, limits=Limits(queue=1000, client_queue=1000))
    for _ in range(3):
        load.ask("old", 50, 10)
        load.finish()
    for _ in range(200):
        load.ask("busy", 300, 50)
    load.run_until(60)
    before = dict(load.service)
    for _ in range(200):
        load.ask("old", 300, 50)
    load.run_until(180)
    gained = {client: load.service[client] - before[client] for client in ("busy", "old")}
    assert gained["old"] <= 1.5 * gained["busy"]


def test_clients_that_always_come_anew_do_not_starve_one_that_stays():
    load, names = Load(ids=2), itertools.count()
    load.ask("stays", 2000, 1)
    load.finish()
    stays = None
    for _ in range(4000):
        while len(load.scheduler.waiting) < 3:
            load.ask(f"{next(names)}", 100, 20)
        stays = stays or load.ask("stays", 2000, 5)
        load.step()
        if stays.ended_s is not None:
            break
    assert stays.ended_s is not None


# The batch class


def test_the_batch_class_gets_what_is_left_and_slows_nobody_who_reads():
    quiet, load = Load(ids=8), Load(ids=8)
    for _ in range(12):
        load.ask("batch", 300, 200, priority=BATCH)
    load.run_until(15)
    first, beside = quiet.ask(prompt_tokens=200, answer_tokens=50), load.ask(prompt_tokens=200, answer_tokens=50)
    quiet.finish()
    while beside.ended_s is None:
        load.step()
    assert beside.ttft_s <= first.ttft_s + 0.6, "a step of the batch class, and its own"
    gaps = [later - earlier for earlier, later in itertools.pairwise(beside.token_s[1:])]
    assert sorted(gaps)[-2] <= 0.2
    batch = [asked for asked in load.asked if asked.request.priority is BATCH]
    assert any(token_s > beside.came_s for asked in batch for token_s in asked.token_s), "nothing was left"
    load.finish()


@pytest.mark.parametrize("had", [0, 200], ids=["that has had nothing yet", "that worked alone before"])
def test_the_batch_class_gets_its_turn_also_where_somebody_always_asks(had):
    load = Load(ids=2)
    for _ in range(had):
        load.ask("batch", 50, 20, priority=BATCH)
        load.finish()
    batch = load.ask("batch", 50, 3, priority=BATCH)
    began = load.now
    while batch.ended_s is None:
        for _ in range(4 - len(load.scheduler.waiting) - len(load.scheduler.running)):
            load.ask("people", 300, 100)
        load.step()
        assert load.now < began + 4 * PATIENCE_S


def test_a_batch_prompt_of_which_nothing_can_be_kept_is_not_begun_anew_for_ever():
    load = Load(cells=3000, blocks=0, limits=Limits(long_share=1.0))
    batch = load.ask("batch", 2500, 3, priority=BATCH, use_cache=False)
    while batch.ended_s is None:
        load.run_until(load.now + 8)
        if load.engine.busy and not batch.ended_s:
            load.ask("people", 800, 10)
        assert load.now < 20 * PATIENCE_S
    assert load.scheduler.preemptions >= 1


def test_somebody_who_reads_takes_the_place_of_the_batch_class():
    load = Load(ids=2)
    for _ in range(2):
        load.ask("batch", 200, 100, priority=BATCH)
    load.run_until(2)
    asked = load.ask("people", 100, 5)
    load.step()
    assert asked.is_running
    assert load.scheduler.preemptions == 1
    end(load)


def test_nobody_gives_way_where_that_would_not_be_enough():
    load = Load(cells=4000, limits=Limits(long_share=1.0))
    load.ask("people", 2500, 100)
    batch = [load.ask("batch", 200, 300, priority=BATCH) for _ in range(2)]
    while not all(asked.token_s for asked in batch):
        load.step()
    more = load.ask("people", 1800, 5)
    load.step()
    assert not more.is_running
    assert all(asked.is_running for asked in batch)
    end(load)


def outgrowing(first, second):
    """Two that outgrow the cells, the first of which came before the other; return them when one has had to give way."""
    load = Load(cells=600, limits=Limits(long_share=1.0))
    load.scheduler._lengths._mean = 1.0  # they are let in as if their answers were short
    asked = [load.ask("x", 100, 400, priority=first), load.ask("y", 100, 400, priority=second)]
    while not load.scheduler.preemptions:
        load.step()
    return [each.is_running for each in asked]


@pytest.mark.parametrize(
    ("first", "second", "stay"),
    [
        (BATCH, Priority.INTERACTIVE, [False, True]),
        (Priority.INTERACTIVE, BATCH, [True, False]),
        (BATCH, BATCH, [True, False]),
        (Priority.INTERACTIVE, Priority.INTERACTIVE, [True, False]),
    ],
)
def test_the_batch_class_gives_way_first_and_then_the_newest(first, second, stay):
    assert outgrowing(first, second) == stay


# Long requests


def test_one_long_request_at_a_time_and_nobody_waits_behind_the_next():
    load = Load(cells=4000, ids=8)
    long = [load.ask("long", 1500, 20) for _ in range(3)]
    short = load.ask("short", 50, 5)
    load.step()
    assert [asked.is_running for asked in (*long, short)] == [True, False, False, True]
    end(load)


def test_what_a_long_request_shares_does_not_count():
    load = Load(cells=4000, ids=8)
    first = load.ask("a", 1600, 20, shared=1500)
    while not first.token_s:
        load.step()
    second = load.ask("b", 1600, 20, shared=1500)
    load.step()
    assert second.is_running


def test_a_long_request_of_somebody_who_reads_does_not_wait_for_one_of_the_batch_class():
    load = Load(cells=4000, ids=8)
    load.ask("batch", 1500, 400, priority=BATCH)
    load.run_until(2)
    asked = load.ask("people", 1500, 5)
    load.step()
    assert asked.is_running


# Who is taken


def overloaded(seed, batch=0):
    """Come half again as fast as can be done, everyone with a deadline; return the load, the end's time, and what can be done in a second."""
    chance = random.Random(seed)
    sizes = [(chance.randint(20, 300), chance.randint(20, 120)) for _ in range(300)]
    closed, load = Load(Machine(seed + 100), cells=8192), Load(Machine(seed), cells=8192, limits=Limits(queue=1000))
    for prompt, answer in sizes[:60]:
        closed.ask("", prompt, answer)
    closed.finish()
    capacity = 60 / closed.now
    for _ in range(batch):
        load.ask("batch", 200, 200, priority=BATCH)
    for prompt, answer in sizes:
        load.run_until(load.now + chance.expovariate(1.5 * capacity))
        load.ask("", prompt, answer, deadline_s=5.0)
    end_s = load.now
    load.finish()
    return load, end_s, capacity


@pytest.mark.parametrize("batch", [0, 100], ids=["", "beside a batch"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_taken_comes_in_time_under_half_again_as_much_as_can_be_done(seed, batch):
    load, end_s, capacity = overloaded(seed, batch)
    people = [asked for asked in load.asked if asked.request.priority is not BATCH]
    taken = [asked for asked in people if asked.refused is None]
    late = sum(asked.ttft_s > 5.0 for asked in taken)
    assert late <= 0.01 * len(taken)
    assert (len(taken) - late) / end_s >= 0.8 * capacity


def test_hardly_anybody_comes_later_than_was_said():
    later = taken = 0
    for seed in range(10, 12):
        load, *_ = overloaded(seed)
        accepted = [asked for asked in load.asked if asked.refused is None][20:]
        later += sum(asked.ttft_s > asked.expected_s for asked in accepted)
        taken += len(accepted)
    assert later <= 0.015 * taken


def test_an_overload_that_is_over_refuses_nobody():
    load, *_ = overloaded(0)
    for _ in range(50):
        load.engine._admission._prudence.take(was_late=True)
        load.now += 2
    assert load.ask("", 100, 10, deadline_s=2.0).refused is None, "nobody else is here"
    load.finish()
    load.now += 3600
    load.ask("", 100, 500)
    load.run_until(load.now + 2)
    assert load.ask("", 100, 10, deadline_s=2.0).refused is None
    load.finish()


def test_the_queue_is_bounded_and_says_when_to_come_again():
    load = Load(ids=2, limits=Limits(queue=10))
    load.ask()
    load.finish()
    began = load.now
    refused = [load.ask(prompt_tokens=100, answer_tokens=50).refused for _ in range(20)]
    assert [error is None for error in refused] == [True] * (2 + 10) + [False] * 8
    assert {error.kind for error in refused[12:]} == {FailureKind.OVERLOADED}
    retry_s = refused[-1].data["retry_after_s"]
    assert f"try again in {retry_s} s" in refused[-1].message
    load.run_until(began + retry_s)
    assert load.ask(prompt_tokens=100, answer_tokens=50).refused is None
    load.finish()
    done_s = load.now - began
    assert done_s / 40 <= retry_s <= done_s, "so long it takes until somebody leaves"


def test_a_client_s_share_of_the_queue_is_bounded():
    load = Load(ids=2, limits=Limits(queue=10, client_queue=3))
    refused = [load.ask("a").refused for _ in range(7)]
    assert [error and error.kind for error in refused] == [None] * (2 + 3) + [FailureKind.CLIENT_LIMIT] * 2
    assert load.ask("b").refused is None
    load.finish()


def test_what_cannot_be_in_time_is_refused_at_once_with_the_time_when_it_could():
    load = Load(ids=2)
    for _ in range(4):
        load.ask("", 300, 100)
    load.run_until(5)
    error = load.ask("", 300, 10, deadline_s=0.5).refused
    assert error is not None
    assert "wanted within 0.5 s" in error.message
    assert load.ask("", 300, 10, deadline_s=1000).refused is None
    load.run_until(load.now + error.data["retry_after_s"])
    assert load.ask("", 300, 10, deadline_s=6).refused is None
    load.finish()


def measured(**options):
    """A load that has computed something: what is not measured is no reason to refuse anybody."""
    load = Load(**options)
    load.ask(prompt_tokens=300)
    load.finish()
    return load


def test_what_others_have_already_is_not_waited_for():
    load = measured(cells=8000, ids=32)
    first = load.ask("a", 3000, 400, shared=2950)
    while not first.token_s:
        load.step()
    for _ in range(8):
        load.ask("a", 3000, 300, shared=2950)
    load.run_until(load.now + 4)
    asked = load.ask("b", 3000, 10, shared=2950, deadline_s=4.0)
    assert asked.refused is None
    load.finish()
    assert asked.ttft_s <= 4.0


def test_several_choices_are_promised_what_one_would_be():
    load = measured(cells=8192)
    one, several = load.ask("a", 2000, 10).expected_s, load.ask("b", 2000, 10, n=8).expected_s
    load.finish()
    assert several <= 3 * one


def test_the_batch_class_that_gives_way_is_no_obstacle():
    load = measured(ids=4)
    for _ in range(6):
        load.ask("batch", 100, 500, priority=BATCH)
    load.run_until(load.now + 5)
    asked = load.ask("people", 100, 10, deadline_s=2.0)
    assert asked.refused is None
    load.run_until(load.now + 5)
    assert asked.ttft_s <= 2.0


@pytest.mark.parametrize(
    ("running", "asked"),
    [
        ({"prompt_tokens": 1500, "answer_tokens": 400}, {"prompt_tokens": 1500}),
        ({"deterministic": True, "answer_tokens": 400}, {}),
        ({"answer_tokens": 400}, {"deterministic": True}),
    ],
    ids=["one long one at a time", "beside a deterministic one there is nobody", "nor does that begin beside others"],
)
def test_who_has_to_wait_for_another_s_end_is_not_promised_anything_sooner(running, asked):
    load = measured(cells=4000)
    load.ask("a", **running)
    load.run_until(load.now + (8 if "prompt_tokens" in running else 1))
    assert load.ask("b", **asked, deadline_s=3.0).refused is not None
    load.finish()


# Planted faults


def forget_the_order(_self, sequences):
    return sorted(sequences, key=lambda each: each.number)


def never_lift(self, client):
    self._had.setdefault(client, 0.0)
    self._waiting[client] += 1


SAME_SERVICE = test_between_two_who_always_want_more_service_differs_by_a_bound_that_does_not_grow


def test_fairness_notices_that_turns_are_taken_by_arrival(monkeypatch):
    monkeypatch.setattr(Scheduler, "in_order", forget_the_order)
    with pytest.raises(AssertionError):
        SAME_SERVICE(UNEQUAL, 0)


@pytest.mark.parametrize("room", [{"ids": 8}, {"cells": 3000}])
def test_a_flood_that_fills_everything_is_noticed(room, monkeypatch):
    monkeypatch.setattr(Scheduler, "share_for", lambda *_args: 1.0)
    with pytest.raises(AssertionError):
        test_whoever_floods_the_queue_leaves_room_for_another_one_s_request(room)


def test_fairness_notices_that_idling_pays(monkeypatch):
    monkeypatch.setattr("pinyon.engine.fair_share.FairShare.wait", never_lift)
    with pytest.raises(AssertionError):
        test_idling_saves_nothing_up()


def test_the_order_of_those_who_give_way_is_noticed(monkeypatch):
    monkeypatch.setattr(Scheduler, "_last", lambda self: max(self.running, key=lambda each: each.number))
    with pytest.raises(AssertionError):
        test_the_batch_class_gives_way_first_and_then_the_newest(BATCH, Priority.INTERACTIVE, [False, True])


def skip_readers(self):
    prompts = [each for each in self.running if each.state is State.PREFILL]
    yield from SLICES(self) if not prompts else self._prompt_slices(prompts, self._budget.step([100], 0))


SLICES = Scheduler._slices
LIMIT_S = StepBudget.limit_s


@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [
        (Step, "chunk_rows", lambda *_args: 128),
        (Step, "chunk_rows", lambda *_args: 48),
        (StepBudget, "limit_s", lambda self, lengths, used: 1.5 * LIMIT_S(self, lengths, used)),
        (Scheduler, "_slices", skip_readers),
    ],
    ids=["large chunks", "chunks that are a little too large", "a bound half again as high", "readers are skipped"],
)
def test_the_stall_bound_notices(owner, method, fault, monkeypatch):
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises(AssertionError):
        test_a_long_prompt_does_not_stall_those_who_read(0, 4, 0.06)


def test_the_promises_notice_that_those_ahead_are_not_counted(monkeypatch):
    monkeypatch.setattr(Admission, "_place_s", lambda *_args: 0.0)
    monkeypatch.setattr(Admission, "_slowdown", lambda *_args: 1.0)
    with pytest.raises(AssertionError):
        test_hardly_anybody_comes_later_than_was_said()


def forget_the_cells(self, leaf):
    leaf.in_use = True


@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [(Scheduler, "_start", lambda *_args: False), (KvCells, "rest", forget_the_cells)],
    ids=["a request that is forgotten", "cells that nobody gives back"],
)
def test_the_checks_notice(owner, method, fault, monkeypatch):
    monkeypatch.setattr(owner, method, fault)
    load = Load()
    load.ask()
    with pytest.raises(AssertionError):
        end(load)
