"""Whole engines on the fake memory: what is computed once, what comes back, what is left, and that every answer is what it is cold."""

from types import SimpleNamespace

import msgspec
import pytest
from fake_disk import FakeDisk
from fakes import (
    BLOCK_BYTES,
    END_OF_TURN,
    USER_TAG,
    assert_idle,
    cached,
    hashed,
    make_engine,
    make_store,
    run_to_end,
    scripted,
    submit,
    text_of,
    tidied,
    tokens_of,
)
from kv_compare import MOVE_S, ROW_S, compare_blocks, compare_kv

from pinyon.engine import kv_blocks
from pinyon.engine.answer_memory import AnswerMemory
from pinyon.engine.block_file import BlockDamagedError
from pinyon.engine.block_store import BLOCK_TOKENS, TAIL_REST_S
from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.cost_model import CostModel
from pinyon.engine.events import Failed, Finished, FinishReason, Progress
from pinyon.engine.kv_blocks import KvBlocks
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.shared_kv import MAX_CREDIT_S, SAVE_SHARE, TIDY_S

GREEDY = SamplingParams(temperature=0)
ANSWER = 8
"""Tokens of an answer. The last one is not computed."""
ABC = "".join(f"{number:03}," for number in range(100))
"""A prompt of 400 tokens that is nowhere like itself."""


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), GREEDY, **{"max_tokens": ANSWER, **fields})


def cold(request, next_token=hashed):
    """The answer of an engine that knows nothing."""
    return text_of(run_to_end(make_engine(next_token, cells=1024).engine, request)[request.id])


def run(made, request, next_token=hashed):
    """Return the end of an answer, after checking its text, what was computed for it, and all of the memory."""
    before = made.runner.computed[request.id]
    events = run_to_end(made.engine, request)[request.id]
    end = events[-1]
    assert text_of(events) == cold(request, next_token)
    assert_idle(made)
    computed = made.runner.computed[request.id] - before
    assert computed >= end.usage.completion_tokens
    if request.n == 1 and end.reasons != (FinishReason.CANCELLED,):
        reported = [event for event in events if isinstance(event, Progress)]
        assert reported[-1] == Progress(end.usage.prompt_tokens, end.usage.prompt_tokens, end.usage.cached_tokens)
        is_last_computed = end.reasons == (FinishReason.STOP,) and not request.stop
        answer = end.usage.completion_tokens - (not is_last_computed)
        assert computed == end.usage.prompt_tokens - end.usage.cached_tokens + answer
    return end


def restarted(made, **options):
    """An engine with an empty context that has what the other one stored."""
    tidied(made)
    return make_engine(cells=1024, store=made.kv._store, **options)


def blocks_of(made):
    """What the store holds, as the texts of its blocks."""
    waiting, found = [*made.kv._store._roots.values()], []
    while waiting:
        block = waiting.pop()
        found += [bytes(block.tokens).decode()] * bool(block.tokens)
        waiting += block.children
    return sorted(found)


@pytest.fixture
def cells_cost_nothing(monkeypatch):
    """What is idle stays in the context as long as there is room."""
    monkeypatch.setattr(CostModel, "cell_s", lambda *_args: 0.0)
    monkeypatch.setattr(CostModel, "prefill_cell_s", lambda *_args: 0.0)


# What is idle


def test_what_has_slowed_others_for_longer_than_its_return_takes_goes_and_comes_back():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:150]))
    run(made, ask("b", "x" + ABC[:150], max_tokens=100))
    assert made.runner.used_cells <= 150 + 100
    assert cached(run(made, ask("c", ABC[:150]))) == (0, 149, 0)


@pytest.mark.parametrize(("tokens", "is_kept"), [(400, False), (10, True)])
def test_what_a_new_prompt_would_pay_too_much_for_goes_before_it_begins(tokens, is_kept):
    made = make_engine(cells=1024, store=make_store())
    made.kv._costs.measure_restore(BLOCK_BYTES, MOVE_S)
    run(made, ask("a", ABC[:150]))
    tidied(made)
    submit(made.engine, ask("b", ("x" + ABC)[:tokens]))
    made.engine.step()
    assert len(made.kv._cells.idle()) == is_kept
    assert (made.runner.used_cells > 150) == is_kept


@pytest.mark.parametrize(
    ("store", "private"), [(False, False), (True, True)], ids=["nowhere to come back from", "private"]
)
def test_what_would_have_to_be_computed_again_is_kept_longer(store, private):
    made = make_engine(cells=1024, store=make_store() if store else None)
    run(made, ask("a", ABC[:150], private=private))
    run(made, ask("b", "x" + ABC[:150], max_tokens=100))
    assert cached(run(made, ask("c", ABC[:150]))) == (149, 0, 0)


# The same prompt


@pytest.mark.usefixtures("cells_cost_nothing")
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stored"])
def test_the_same_prompt_again_and_again_a_beginning_of_it_and_one_token_more(resident):
    made = make_engine(cells=1024, store=make_store())
    prompts = [ABC[:150]] * 3 + [ABC[:100], ABC[:151], ABC[:129], ABC[:128], ABC[:1], ABC[:2]]
    expected = [0, 149, 149, 99, 150, 128, 127, 0, 1]
    for number, (prompt, tokens) in enumerate(zip(prompts, expected, strict=True)):
        end = run(made, ask(f"r{number}", prompt))
        assert cached(end) == ((tokens, 0, 0) if resident else (0, tokens, 0))
        assert end.usage.prompt_tokens == len(prompt)
        assert end.cache.miss is (Miss.NEW if number == 0 else None) or prompt == ABC[:1]
        if not resident:
            made = restarted(made)


def test_what_is_in_the_context_does_not_come_back():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:200]))
    made = restarted(made)
    run(made, ask("b", ABC[:100]))
    assert cached(run(made, ask("c", ABC[:200]))) == (100, 99, 0)
    assert made.runner.computed["c"] == ANSWER


def test_namespaces_share_nothing():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:150]))
    assert cached(run(made, ask("b", ABC[:150], namespace="other"))) == (0, 0, 0)
    made = restarted(made)
    for name, namespace, tokens in [("c", "third", 0), ("d", "other", 149), ("e", "", 149)]:
        assert cached(run(made, ask(name, ABC[:150], namespace=namespace))) == (0, tokens, 0)


# Conversations


def speaks(count):
    """A model that says so many letters, then a #, then ends its turn."""

    def next_token(name, tokens, generated):
        return hashed(name, tokens, generated) if generated < count else ord("#") if generated == count else END_OF_TURN

    return next_token


def by_length(made, request):
    return run(made, msgspec.structs.replace(request, max_tokens=20), speaks(20))


def by_end_of_turn(made, request):
    return run(made, msgspec.structs.replace(request, max_tokens=None), speaks(20))


def by_stop_string(made, request):
    return run(made, msgspec.structs.replace(request, max_tokens=None, stop=("#",)), speaks(20))


def by_cancel(made, request):
    submit(made.engine, msgspec.structs.replace(request, max_tokens=None))
    events = []
    while len(tokens_of(events)) < 20:
        events += [event for _, event in made.engine.step()]
    *_, (_, end) = made.engine.cancel(request.id)
    assert text_of(events) == cold(msgspec.structs.replace(request, max_tokens=20), speaks(20))
    assert_idle(made)
    return end


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stored"])
@pytest.mark.parametrize(
    ("ended", "shown", "kept"),
    [(by_length, 20, 19), (by_end_of_turn, 21, 21), (by_stop_string, 20, 20), (by_cancel, 20, 19)],
)
def test_a_turn_computes_only_its_own_tokens(ended, shown, kept, resident):
    """The last token of an answer is computed only where it was not the end. A stop string is no part of the history."""
    made = make_engine(speaks(20), cells=1024, store=make_store())
    history, known = "", 0
    for turn in range(5):
        prompt = f"{history} turn {turn}: {ABC[: 30 * turn]}"
        end = ended(made, ask(f"t{turn}", prompt))
        assert cached(end) == ((known, 0, 0) if resident else (0, known, 0))
        answer = cold(ask("", prompt, max_tokens=shown), speaks(20))
        history, known = prompt + answer, len(prompt) + kept
        if not resident:
            made = restarted(made, next_token=speaks(20))


@pytest.mark.parametrize(("steps", "kept"), [(0, 0), (1, 64), (3, 192), (5, 300), (10, 305)])
def test_what_a_cancelled_request_has_computed_is_kept(steps, kept):
    made = make_engine(cells=1024, store=make_store())
    submit(made.engine, ask("a", ABC[:300]))
    events = [event for _ in range(steps) for _, event in made.engine.step()]
    made.engine.cancel("a")
    assert_idle(made)
    go_on = ask("b", ABC[:300] + text_of(events) + "continue")
    assert cached(run(made, go_on)) == (kept, 0, 0)
    made = restarted(made)
    assert cached(run(made, ask("c", ABC[:300]))) == (0, 299, 0)


def test_conversations_with_one_system_prompt_take_turns_in_a_context_that_holds_one():
    made = make_engine(cells=400, store=make_store())
    histories = dict.fromkeys("abc", ABC[:130])
    for turn in range(4):
        for name in histories:
            prompt = f"{histories[name]}{name}{turn}" + name * 30
            end = run(made, ask(f"{name}{turn}", prompt))
            known = len(histories[name]) - 1 if turn else 0 if name == "a" else 130
            assert end.usage.cached_tokens == known
            histories[name] = prompt + cold(ask("", prompt))
    assert len(made.kv._cells._tree.leaves) < 3, "there was room for all"


# At once


def test_eight_requests_at_once_compute_their_common_beginning_once():
    made = make_engine(cells=1024)
    requests = [ask(name, ABC[:200] + name * 10) for name in "abcdefgh"]
    events = run_to_end(made.engine, *requests)
    for request in requests:
        assert text_of(events[request.id]) == cold(request)
    assert sum(events[name][-1].usage.cached_tokens for name in "bcdefgh") == 7 * 200
    assert made.runner.computed.total() == 200 + 8 * (10 + ANSWER - 1)
    assert_idle(made)
    assert made.runner.used_cells == made.runner.computed.total()


def test_choices_compute_their_prompt_once():
    made = make_engine(cells=1024)
    end = run_to_end(made.engine, ask("a", ABC[:150], n=4))["a"][-1]
    assert (end.usage.prompt_tokens, end.usage.cached_tokens) == (150, 0)
    assert made.runner.computed["a"] == 150 + 3 + 4 * (ANSWER - 1), "each but the first computes the last token itself"
    assert_idle(made)
    assert cached(run_to_end(made.engine, ask("b", ABC[:150], n=4))["b"][-1]) == (149, 0, 0)


def test_whoever_waits_for_another_goes_on_when_that_one_is_cancelled():
    made = make_engine(cells=1024)
    leader, follower = ask("a", ABC[:300]), ask("b", ABC[:300] + "b")
    submit(made.engine, leader)
    submit(made.engine, follower)
    made.engine.step()
    assert [sequence.request.id for sequence in made.scheduler.waiting] == ["b"]
    made.engine.cancel("a")
    events = [event for _, event in run_to_end_of(made)]
    assert text_of(events) == cold(follower)
    assert cached(events[-1]) == (64, 0, 0)
    assert_idle(made)


def run_to_end_of(made):
    emitted = []
    while made.engine.busy:
        emitted += made.engine.step()
    return emitted


@pytest.mark.parametrize("failing", range(8))
def test_a_decode_that_fails_leaves_nothing_wrong_behind(failing):
    made = make_engine(cells=1024, store=make_store(), failing=[failing])
    requests = [ask("a", ABC[:200]), ask("b", ABC[:200] + "b"), ask("c", ABC[:100] + "c")]
    events = run_to_end(made.engine, *requests)
    assert any(isinstance(events[name][-1], Failed) for name in "abc")
    for request in requests:
        end = events[request.id][-1]
        assert isinstance(end, Failed) or text_of(events[request.id]) == cold(request)
    assert_idle(made)
    for name, request in zip("xyz", requests, strict=True):
        run(made, msgspec.structs.replace(request, id=name))
        made = restarted(made)


def test_of_a_request_that_failed_nothing_more_is_stored(monkeypatch):
    monkeypatch.setattr("kv_compare.MOVE_S", 1.0)  # one block, and the steps have paid for no more
    made = make_engine(cells=1024, store=make_store(), failing=[4])
    events = run_to_end(made.engine, ask("a", ABC[:400]))["a"]
    assert isinstance(events[-1], Failed)
    assert_idle(made)
    assert blocks_of(tidied(made)) == [ABC[:64]]


# What is not shared


@pytest.mark.usefixtures("cells_cost_nothing")
def test_without_the_cache_nothing_is_reused_and_nothing_is_left():
    made = make_engine(cells=1024, store=make_store())
    off = ask("a", ABC[:150], use_cache=False)
    run(made, off)
    tidied(made)
    assert (made.runner.used_cells, blocks_of(made)) == (0, [])
    run(made, ask("b", ABC[:150]))
    stored, used_cells = blocks_of(tidied(made)), made.runner.used_cells
    end = run(made, msgspec.structs.replace(off, id="c"))
    assert cached(end) == (0, 0, 0)
    assert end.cache.miss is Miss.DISABLED
    assert (blocks_of(tidied(made)), made.runner.used_cells) == (stored, used_cells)


def test_without_the_cache_nothing_is_shared_with_those_who_run_beside():
    made = make_engine(cells=1024)
    emitted = []
    for request in [
        ask("a", ABC[:150], use_cache=False, n=2),
        ask("b", ABC[:150]),
        ask("c", ABC[:150], use_cache=False),
    ]:
        emitted += submit(made.engine, request)
        for _ in range(6):
            emitted += made.engine.step()
    emitted += run_to_end_of(made)
    assert [event.usage.cached_tokens for _, event in emitted if isinstance(event, Finished)] == [0, 0, 0]
    assert made.runner.computed.total() == 4 * (150 + ANSWER - 1)


def test_of_a_private_text_nobody_else_is_told():
    made = make_engine(cells=1024)
    run(made, ask("a", ABC[:50] + "SECRET" * 9, private=True))
    report = run(made, ask("b", ABC[:50] + "another end")).cache
    assert (report.cached, report.miss, report.expected) == (50, Miss.NEW, "")
    report = run(made, ask("c", ABC[:50] + "another text")).cache
    assert (report.miss, report.expected[:3], report.got) == (Miss.DIVERGED, "end", "text")


def test_of_a_private_request_nothing_is_stored():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:150]))
    public = blocks_of(tidied(made))
    assert cached(run(made, ask("b", ABC[:150] + "SECRET", private=True))) == (150, 0, 0)
    assert cached(run(made, ask("c", ABC[:150] + "SECRET" * 20, private=True))) == (156, 0, 0)
    assert blocks_of(tidied(made)) == public
    assert made.kv.make_room(1024)
    compare_kv(made.kv, made.runner.memory)
    assert blocks_of(made) == public


@pytest.mark.parametrize("is_tidied", [True, False])
def test_a_private_request_may_go_on_in_what_another_one_left(is_tidied):
    """Then the first one's tokens are stored all the same."""
    made = make_engine(cells=1024, store=make_store())
    text = ABC[:128] + cold(ask("", ABC[:128], max_tokens=65))
    run(made, ask("a", ABC[:128], max_tokens=65))  # it leaves three whole blocks
    if is_tidied:
        tidied(made)
    assert cached(run(made, ask("b", text + "SECRET" * 20, private=True))) == (192, 0, 0)
    tidied(made)
    assert made.kv.make_room(1024)
    assert blocks_of(made) == sorted([text[:64], text[64:128], text[128:192]])


def test_a_private_request_leaves_the_end_that_another_one_left():
    made = make_engine(cells=1024, store=make_store())
    text = ABC[:150] + cold(ask("", ABC[:150]))
    run(made, ask("a", ABC[:150]))
    assert cached(run(made, ask("b", text + "SECRET" * 20, private=True))) == (157, 0, 0)
    tidied(made)
    assert blocks_of(made) == sorted([text[:64], text[64:128], text[128:157]])


def test_a_private_request_s_text_is_stored_by_those_who_send_it_openly():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:150], private=True))
    assert cached(run(made, ask("b", ABC[:150]))) == (149, 0, 0)
    assert blocks_of(tidied(made))[:2] == [ABC[:64], ABC[64:128]]


# Stored blocks


def test_what_was_driven_out_of_the_context_comes_back():
    made = make_engine(cells=512, store=make_store())
    first = ask("a", ABC[:150])
    run(made, first)
    run(made, ask("b", "b" * 500))
    assert made.kv.known_tokens(made_sequence(made, first)) == 0
    assert cached(run(made, msgspec.structs.replace(first, id="c"))) == (0, 149, 0)


def made_sequence(made, request):
    """A sequence that waits."""
    submit(made.engine, msgspec.structs.replace(request, id="probe"))
    sequence = made.scheduler.waiting[-1]
    made.engine.cancel("probe")
    return sequence


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (ABC[:150], 149),
        (ABC[:65], 64),
        (ABC[:64], 63),
        (ABC[:50] + "x", 50),
        (ABC[:100] + "x" * 50, 100),
        (ABC[:140] + "x" * 50, 140),
        (ABC[:150] + "x" * 50, 150),
        ("x" * 100, 0),
        ("x" + ABC[:150], 0),
    ],
    ids=[
        "all",
        "a block",
        "less",
        "half a block",
        "half of the second",
        "part of the tail",
        "more",
        "other",
        "shifted",
    ],
)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_blocks_serve_whole_and_in_part(prompt, tokens, tier):
    disk = FakeDisk()
    made = tidied_with_tail(ABC[:150], disk)
    made = make_engine(cells=1024, store=made.kv._store if tier == "ram" else make_store(disk=disk))
    end = run(made, ask("b", prompt))
    assert cached(end) == ((0, tokens, 0) if tier == "ram" else (0, 0, tokens))
    compare_blocks(made.kv)


def tidied_with_tail(prompt, disk):
    """An engine that has put a prompt and its tail on disk."""
    made = make_engine(cells=1024, store=make_store(disk=disk))
    made.kv._store._clock = made.runner.memory.clock
    run(made, ask("a", prompt))
    tidied(made)
    made.runner.memory.clock.now += TAIL_REST_S
    return tidied(made)


def on_disk_only(prompt=ABC[:200]):
    disk = FakeDisk()
    tidied_with_tail(prompt, disk)
    return make_engine(cells=1024, store=make_store(disk=disk)), disk


@pytest.mark.parametrize(
    "error", [BlockDamagedError("its payload differs"), FileNotFoundError("gone"), OSError(5, "EIO"), TimeoutError()]
)
def test_a_file_that_cannot_be_read_is_a_miss_and_goes(error):
    made, disk = on_disk_only()
    disk.error = error
    end = run(made, ask("b", ABC[:200]))
    assert (cached(end), end.cache.miss, end.cache.position) == ((0, 0, 0), Miss.UNREADABLE, 0)
    assert blocks_of(made)[0] == ABC[:64], "it is stored again"
    disk.error = None
    assert cached(run(restarted(made), ask("c", ABC[:200])))[1:] == (199, 0)


def test_what_comes_before_a_file_that_cannot_be_read_is_used():
    made, disk = on_disk_only()
    second = next(key for key, (header, _) in disk.files.items() if header.start == 64)
    read = disk.read

    def read_all_but_one(block):
        disk.error = OSError("no") if block.key == second else None
        return read(block)

    disk.read = read_all_but_one
    end = run(made, ask("b", ABC[:200]))
    assert (cached(end), end.cache.miss, end.cache.position) == ((0, 0, 64), Miss.UNREADABLE, 64)


def cut(state):
    return state[:-4]


def say_more_cells(state):
    return state[:4] + b"\xff" + state[5:]


@pytest.mark.parametrize("damage", [cut, say_more_cells, lambda _state: b""])
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_a_state_that_the_memory_refuses_is_a_miss_and_goes(damage, tier):
    disk = FakeDisk()
    made = tidied_with_tail(ABC[:150], disk)
    if tier == "disk":
        disk.files = {key: (header, damage(state)) for key, (header, state) in disk.files.items()}
        made = make_engine(cells=1024, store=make_store(disk=disk))
    else:
        (block,) = made.kv._store.root("").children
        block.payload = damage(block.payload)
        made = make_engine(cells=1024, store=made.kv._store)
    end = run(made, ask("b", ABC[:150]))
    assert (cached(end), end.cache.miss) == ((0, 0, 0), Miss.UNREADABLE)
    assert cached(run(restarted(made), ask("c", ABC[:150]))) == (0, 149, 0)


def test_a_file_that_does_not_come_is_waited_for_as_long_as_computing_takes(monkeypatch):
    monkeypatch.setattr(kv_blocks, "WAIT_S", 0)
    made, disk = on_disk_only()
    disk.is_slow = True
    request = ask("b", ABC[:200])
    submit(made.engine, request)
    made.engine.step()
    asked, steps = made.runner.memory.clock.now, 0
    while not made.runner.batches:
        made.engine.step()
        steps += 1
        made.runner.memory.clock.now += 0.1
    waited = made.runner.memory.clock.now - asked
    assert steps > 2
    assert waited == pytest.approx(CostModel().prefill_s(199), abs=0.3)
    events = [event for _, event in run_to_end_of(made)]
    assert text_of(events) == cold(request)
    assert (cached(events[-1]), events[-1].cache.miss) == ((0, 0, 0), Miss.NOT_WORTH_IT)
    assert disk.files, "a slow file is not a bad one"
    assert_idle(made)


def test_others_go_on_while_one_waits_for_its_files():
    made, disk = on_disk_only()
    disk.is_slow = True
    submit(made.engine, ask("b", ABC[:200]))
    made.engine.step()
    other = ask("c", "x" * 100)
    submit(made.engine, other)
    emitted = []
    while len(made.scheduler.running) != 1 or not emitted:
        emitted += made.engine.step()
    assert text_of([event for name, event in emitted if name == "c"]) == cold(other)
    for read, (_, state) in zip(disk.reads, disk.files.values(), strict=False):
        read.set_result(state)
    disk.is_slow = False
    events = [event for _, event in run_to_end_of(made)]
    assert (text_of(events), cached(events[-1])) == (cold(ask("b", ABC[:200])), (0, 0, 199))
    assert_idle(made)


def test_a_request_that_waits_for_its_files_can_be_cancelled():
    made, disk = on_disk_only()
    disk.is_slow = True
    submit(made.engine, ask("b", ABC[:200]))
    made.engine.step()
    ((_, end),) = made.engine.cancel("b")
    assert end.reasons == (FinishReason.CANCELLED,)
    assert_idle(made)
    disk.is_slow = False
    assert cached(run(made, ask("c", ABC[:200]))) == (0, 0, 199)


def test_what_costs_more_to_bring_back_than_to_compute_is_computed():
    costs = CostModel()
    made = make_engine(cells=1024, store=make_store(), costs=costs)
    run(made, ask("a", ABC[:200]))
    made = restarted(made, costs=costs)
    costs.measure_restore(1, 1.0)
    end = run(made, ask("b", ABC[:200]))
    assert (cached(end), end.cache.miss) == ((0, 0, 0), Miss.NOT_WORTH_IT)


def test_a_follower_gets_what_comes_back_for_its_leader():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:300]))
    made = restarted(made)
    requests = [ask("b", ABC[:300] + "b"), ask("c", ABC[:300] + "c")]
    events = run_to_end(made.engine, *requests)
    assert [cached(events[name][-1]) for name in "bc"] == [(0, 300, 0), (300, 0, 0)]
    assert [text_of(events[request.id]) for request in requests] == [cold(request) for request in requests]
    assert_idle(made)


# What storing may cost


def stored_blocks(made):
    return len(made.kv._store._ram)


def test_between_steps_blocks_are_stored_as_far_as_the_steps_have_paid_for_it(monkeypatch):
    export_s = 10 * CHUNK_CREDIT_S
    monkeypatch.setattr("kv_compare.MOVE_S", export_s)
    made = make_engine(cells=2048, store=make_store())
    submit(made.engine, ask("a", ABC * 4, max_tokens=100))
    stored = []
    while made.engine.busy:
        made.engine.step()
        stored.append(stored_blocks(made))
    assert stored[:21] == [1] * 10 + [2] * 10 + [3], "a block each ten chunks"
    spent = stored_blocks(made) * export_s
    earned = SAVE_SHARE * ROW_S * made.runner.computed.total()
    assert spent <= earned + export_s


CHUNK_CREDIT_S = SAVE_SHARE * BLOCK_TOKENS * ROW_S
"""What a step with a chunk of a prompt earns."""


def test_what_is_left_is_stored_in_idle_time_a_little_at_once(monkeypatch):
    monkeypatch.setattr("kv_compare.MOVE_S", TIDY_S / 2)
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:400]))
    before = stored_blocks(made)
    stored = []
    while made.engine.tidy() == 0:
        stored.append(stored_blocks(made))
    assert before < 3
    assert stored == [*range(before + 2, 7, 2)]
    assert stored_blocks(made) == 7
    compare_blocks(made.kv)


def test_cheap_blocks_are_stored_at_once():
    assert MOVE_S < CHUNK_CREDIT_S
    made = make_engine(cells=1024, store=make_store())
    submit(made.engine, ask("a", ABC[:320]))
    for step in range(1, 6):
        made.engine.step()
        assert stored_blocks(made) == step


def test_credit_does_not_pile_up(monkeypatch):
    monkeypatch.setattr("kv_compare.ROW_S", TIDY_S)
    made = make_engine(cells=1024, store=make_store())
    monkeypatch.setattr(KvBlocks, "save", lambda *_args: None)
    run_to_end(made.engine, ask("a", ABC[:400], max_tokens=200))
    assert SAVE_SHARE * made.runner.memory.clock.now > MAX_CREDIT_S
    assert made.kv._save_credit_s == MAX_CREDIT_S


def test_steps_are_measured():
    costs = CostModel()
    made = make_engine(cells=1024, costs=costs)
    run_to_end(made.engine, ask("a", ABC[:400]))
    assert costs.step_s(64, 0) == pytest.approx(64 * ROW_S, rel=0.1)


def test_the_end_of_a_prompt_is_stored_when_nobody_computes_in_it():
    made = make_engine(cells=1024, store=make_store())
    submit(made.engine, ask("a", ABC[:100], max_tokens=3))
    while made.engine.busy:
        made.engine.step()
        assert all(len(block) == BLOCK_TOKENS for block in blocks_of(made)) or not made.engine.busy
    answer = cold(ask("", ABC[:100], max_tokens=2))
    assert blocks_of(tidied(made)) == sorted([ABC[:64], ABC[64:100] + answer])


def test_at_the_end_everything_is_stored():
    made = make_engine(cells=1024, store=make_store())
    made.engine.submit(made.engine.prepare(ask("a", ABC[:300])))
    for _ in range(3):
        made.engine.step()
    made.engine.close()
    assert len(blocks_of(made)) == 3


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_small_store_keeps_to_its_size_and_every_answer_is_right(blocks):
    made = make_engine(cells=300, store=make_store(blocks))
    for round_number in range(3):
        for name in "abc":
            run(made, ask(f"{name}{round_number}", name * 5 + ABC[:200]))
            tidied(made)
            assert made.kv._store._ram.used_bytes <= blocks * BLOCK_BYTES


# Reports


def test_a_report_says_where_a_prompt_goes_another_way():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", "Today is Monday. " + ABC[:150]))
    changed = "Today is Sunday. " + ABC[:150]
    for tiers in [{"resident": 9}, {"ram": 9}]:
        report = run(made, ask("b", changed, use_cache=True)).cache
        expected = CacheReport(**tiers, miss=Miss.DIVERGED, position=9, expected="Monday. 000,", got="Sunday. 000,")
        assert msgspec.structs.replace(report, advice="") == expected
        assert report.advice
        made = make_engine(cells=1024, store=make_store())
        run(made, ask("a", "Today is Monday. " + ABC[:150]))
        made = restarted(made)


def conversation(*texts):
    """Questions and answers by turns, and the heading of the next answer, as a template puts them together."""
    pieces = []
    for number, text in enumerate(texts):
        role = "bot" if number % 2 else "user"
        pieces += [Text(f"<s>{role}:", special=True), Text(text), Text("<|im_end|>", special=True)]
    return (*pieces, Text("<s>bot:", special=True))


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stored"])
@pytest.mark.parametrize(
    ("came_back", "miss"),
    [
        ("an answer of some length", None),
        ("an answer of another length", Miss.HISTORY_CHANGED),
        ("<tool>", Miss.RETOKENISED),
    ],
)
def test_a_report_tells_how_an_answer_came_back(resident, came_back, miss):
    answer = [USER_TAG] if miss is Miss.RETOKENISED else [*b"an answer of some length"]
    made = make_engine(scripted(a=answer, b=b"."), cells=1024, store=make_store())
    talk = conversation("A question. " * 9)
    run_to_end(made.engine, GenerateRequest("a", talk, GREEDY))
    made.engine._past_answers = AnswerMemory(lambda _token: b"", lambda _token: False)  # as after a loss of the notes
    if not resident:
        tidied(made)
        assert made.kv.make_room(1024)
    talk = conversation("A question. " * 9, came_back, "Another question")
    end = run_to_end(made.engine, GenerateRequest("b", talk, GREEDY))["b"][-1]
    assert end.cache.miss is (miss or Miss.NEW)
    assert bool(end.cache.advice) == (miss is not None)
    compare_blocks(made.kv)


def test_a_beginning_whose_window_has_gone_is_not_told_as_another_text(monkeypatch):
    made = make_engine(cells=1024, window=10)
    run(made, ask("a", ABC[:150]))
    monkeypatch.setattr(made.kv._cells, "_has_window_of", lambda _source, _length: False)
    end = run(made, ask("b", ABC[:50] + "another end"))
    assert (cached(end), end.cache.miss, end.cache.expected) == ((0, 0, 0), Miss.UNAVAILABLE, "")


def test_a_beginning_that_had_to_go_for_its_sequence_id_is_told():
    made = make_engine(cells=1024, sequence_ids=1)
    run(made, ask("a", ABC[:150]))
    end = run(made, ask("b", ABC[:50] + "another end"))
    assert (cached(end), end.cache.miss, end.cache.position) == ((0, 0, 0), Miss.EVICTED, 0)


def test_a_private_request_that_takes_nothing_from_blocks_says_so():
    made = make_engine(cells=1024, store=make_store())
    run(made, ask("a", ABC[:150]))
    made = restarted(made)
    end = run(made, ask("c", ABC[:150], private=True))
    assert (end.cache.miss, end.cache.position) == (Miss.DISABLED, 0)
    assert run(made, ask("d", "other" * 30, private=True)).cache.miss is not Miss.DISABLED


def test_a_report_is_put_together_once(monkeypatch):
    made, calls = make_engine(cells=1024, store=make_store()), []
    written = []
    notes = SimpleNamespace(add=lambda *added: written.append(added), add_noted=lambda _noted: None)
    made.engine._notes = notes
    monkeypatch.setattr(Choice, "cache_report", lambda self, tell=Choice.cache_report: calls.append(1) or tell(self))
    *_, end = run_to_end(made.engine, ask("a", ABC[:150], n=3))["a"]
    assert len(calls) == 1
    assert [note and note.report for _, note, _ in written] == [None, None, end.cache]


def test_an_answer_of_a_finished_request_ends_with_its_report():
    made = make_engine(cells=1024)
    *_, end = run_to_end(made.engine, ask("a", ABC[:150]))["a"]
    assert isinstance(end, Finished)
    assert end.cache == CacheReport(miss=Miss.NEW)
