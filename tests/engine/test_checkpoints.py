"""Engines on a fake of a hybrid model's memory: where checkpoints are taken, what they bring back, and that no wrong state is gone on from."""

import random
from array import array

import pytest
from fake_disk import FakeDisk
from fakes import BLOCK_BYTES, assert_idle, cached, make_engine, make_store, run_to_end, submit, text_of, tidied

from pinyon.engine.block_file import BlockDamagedError
from pinyon.engine.block_store import TAIL_REST_S
from pinyon.engine.cache_report import Miss
from pinyon.engine.checkpoints import CHECKPOINT_SHARE, MIN_APART_TOKENS, Checkpoints
from pinyon.engine.cost_model import CostModel
from pinyon.engine.events import Failed
from pinyon.engine.kv_blocks import KvBlocks, Restore
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.request import GenerateRequest, SamplingParams, Text

GREEDY = SamplingParams(temperature=0)
ANSWER = 8
ABC = "".join(f"{number:03}," for number in range(400))
"""A prompt of 1,600 tokens that is nowhere like itself."""


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), GREEDY, **{"max_tokens": ANSWER, **fields})


def cold(prompt, **fields):
    """The answer of an engine that knows nothing, whose memory has no states."""
    return text_of(run_to_end(make_engine().engine, ask("cold", prompt, **fields))["cold"])


def make(store=None, **options):
    return make_engine(is_stateful=True, store=store or make_store(), **options)


def run(made, prompt, name="a", **fields):
    """Return the end of an answer, after checking its text and all of the memory."""
    events = run_to_end(made.engine, ask(name, prompt, **fields))[name]
    assert text_of(events) == cold(prompt, **fields)
    assert_idle(made)
    return events[-1]


def restarted(made, **options):
    """An engine with an empty context that has what the other one stored."""
    return make(tidied(made).kv._store, **options)


def blocks_of(store):
    return [block for root in store._roots.values() for block in root.with_descendants() if block is not root]


def checkpoints_of(made):
    """Where the store has a checkpoint."""
    return sorted(block.end for block in blocks_of(made.kv._store) if not block.tokens)


# Where they are taken


@pytest.mark.parametrize(
    ("length", "taken"),
    [(30, []), (64, []), (65, [64]), (128, [64]), (129, [128]), (200, [192]), (1100, [512, 1024, 1088])],
)
def test_a_prompt_has_one_near_its_end_and_a_long_one_now_and_then(length, taken):
    made = make()
    run(made, ABC[:length])
    assert checkpoints_of(tidied(made)) == sorted({*taken, length + ANSWER - 1})


def test_dear_checkpoints_are_taken_more_seldom():
    costs = CostModel()
    checkpoints = make(costs=costs).kv._checkpoints
    checkpoints._size_bytes = 1 << 20
    costs.measure_restore(1 << 20, 0.5)
    costs.prefill_s = lambda tokens: tokens * 0.05
    assert 0.5 / CHECKPOINT_SHARE / 0.05 == 1000 > MIN_APART_TOKENS
    assert checkpoints.positions(3000, 0) == {0, 960, 1920, 2880, 2944}


def test_an_answer_that_ends_with_a_block_has_one_too():
    made = make()
    run(made, ABC[:100], max_tokens=29)
    assert checkpoints_of(tidied(made)) == [64, 128]
    assert cached(run(restarted(made), ABC[:100] + cold(ABC[:100], max_tokens=29), "b")) == (0, 128, 0)


def test_who_parts_from_what_is_known_leaves_one_there():
    made = make()
    ends = [run(made, ABC[:300] + name * 100, name) for name in "abc"]
    assert [cached(end) for end in ends] == [(0, 0, 0), (0, 0, 0), (0, 256, 0)]
    assert [(end.cache.miss, end.cache.position) for end in ends] == [(Miss.NEW, 0)] + [(Miss.DIVERGED, 300)] * 2
    assert ends[2].cache.got == "c" * 12


def test_of_a_private_request_none_is_taken():
    made = make()
    run(made, ABC[:200], private=True)
    assert blocks_of(tidied(made).kv._store) == []
    assert cached(run(made, ABC[:200] + cold(ABC[:200]) + "x", "b", private=True)) == (207, 0, 0)
    assert blocks_of(tidied(made).kv._store) == []


# What they bring back


def test_a_turn_goes_on_in_the_context_where_the_last_one_ended():
    made, history, known = make(), "", 0
    for turn in range(5):
        history += f" turn {turn}: {ABC[: 30 * turn]}"
        assert cached(run(made, history)) == (known, 0, 0)
        known = len(history) + ANSWER - 1
        history += cold(history)


def test_a_turn_goes_on_from_the_store_where_the_last_one_ended():
    made, history, known = make(), "", 0
    for turn in range(5):
        history += f" turn {turn}: {ABC[: 30 * turn]}"
        assert cached(run(made, history)) == (0, known, 0)
        known = len(history) + ANSWER - 1
        history += cold(history)
        made = restarted(made)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("prompt", "known", "miss"),
    [
        (ABC[:200], 192, Miss.UNAVAILABLE),
        (ABC[:193], 192, None),
        (ABC[:192], 0, Miss.UNAVAILABLE),
        (ABC[:199] + "x" * 50, 192, Miss.DIVERGED),
        (ABC[:195] + "x" * 50, 192, Miss.DIVERGED),
        (ABC[:190] + "x" * 50, 0, Miss.DIVERGED),
        ("x" + ABC[:200], 0, Miss.DIVERGED),
    ],
)
def test_a_request_goes_on_from_the_last_checkpoint_before_it_parts(prompt, known, miss, resident):
    made = make()
    run(made, ABC[:200])
    made = tidied(made) if resident else restarted(made)
    end = run(made, prompt, "b")
    assert (cached(end), end.cache.miss) == ((0, known, 0), miss)
    if miss is Miss.UNAVAILABLE:
        assert end.cache.position == known


def test_an_edited_question_goes_on_where_the_last_answer_ended():
    made = make()
    first = ABC[:70] + cold(ABC[:70])
    run(made, ABC[:70])
    tidied(made)
    made.kv._store._clock = lambda: float("inf")  # somebody has thought about the question
    run(made, first + "question" * 20, "b")
    tidied(made)
    assert cached(run(made, first + "another" * 20, "c")) == (0, 77, 0)
    assert cached(run(restarted(made), first + "third" * 20, "d")) == (0, 77, 0)


def test_after_a_restart_an_edited_question_goes_on_where_the_last_answer_ended():
    disk = on_disk(ABC[:70])
    first = ABC[:70] + cold(ABC[:70])
    made = make(make_store(disk=disk))
    run(made, first + "question" * 20)
    made.engine.close()
    assert cached(run(make(make_store(disk=disk)), first + "another" * 20)) == (0, 0, 77)


def test_what_is_superseded_at_once_goes_with_its_checkpoint():
    made = make()
    for length in range(70, 100, 5):
        run(made, ABC[:length], max_tokens=1)
    assert checkpoints_of(tidied(made)) == [64, 95]


def on_disk(prompt):
    disk = FakeDisk()
    made = make(make_store(disk=disk))
    run(made, prompt)
    tidied(made)
    made.kv._store._clock = lambda: TAIL_REST_S + 1e9
    tidied(made)
    return disk


def test_after_a_restart_it_comes_from_the_disk():
    disk = on_disk(ABC[:200])
    prompt = ABC[:200] + cold(ABC[:200]) + "and more"
    assert cached(run(make(make_store(disk=disk)), prompt)) == (0, 0, 207)


def test_of_a_prompt_shorter_than_a_block_nothing_is_worth_a_file():
    assert on_disk(ABC[:30]).files == {}


@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_all_tokens_count_to_the_slower_of_the_tiers_that_they_need(is_checkpoint):
    disk = on_disk(ABC[:200])
    store = make_store(disk=disk)
    for block in blocks_of(store):
        if bool(block.tokens) == is_checkpoint:
            block.payload = store.read(block).result()
    end = run(make(store), ABC[:193])
    assert cached(end) == (0, 0, 192)


def test_requests_at_once_compute_their_common_beginning_once():
    made = make()
    requests = [ask(name, ABC[:200] + name * 10) for name in "abcd"]
    events = run_to_end(made.engine, *requests)
    for name in "abcd":
        assert text_of(events[name]) == cold(ABC[:200] + name * 10)
        assert cached(events[name][-1]) == (0, 0 if name == "a" else 192, 0)
    assert_idle(made)
    assert 192 in checkpoints_of(made)


def test_choices_compute_their_prompt_once():
    made = make()
    end = run_to_end(made.engine, ask("a", ABC[:150], n=4))["a"][-1]
    assert (end.usage.prompt_tokens, end.usage.cached_tokens) == (150, 0)
    assert made.runner.computed["a"] == 150 + 3 * 22 + 4 * (ANSWER - 1)
    assert_idle(made)


def test_nobody_waits_for_a_private_request():
    made = make()
    for name, private in [("a", True), ("b", False), ("c", True)]:
        submit(made.engine, ask(name, ABC[:200], private=private))
    made.engine.step()
    assert not made.scheduler.waiting


# When something goes wrong


@pytest.mark.parametrize("error", [BlockDamagedError("its payload differs"), FileNotFoundError("gone")])
@pytest.mark.parametrize("part", [0, 1, 3, 5])
@pytest.mark.parametrize("resident", [False, True])
def test_without_one_of_the_files_everything_is_computed(error, part, resident):
    """Three blocks, the checkpoint at 192, the tail of the answer and its checkpoint."""
    disk = on_disk(ABC[:200])
    made = make(make_store(disk=disk))
    if resident:  # its cells are shared, its state is another one
        run(made, ABC[:60], private=True)
    bad = sorted(disk.files, key=lambda key: (disk.files[key][0].start, -len(disk.files[key][0].tokens)))[part]
    read = disk.read

    def read_all_but_one(block):
        disk.error = error if block.key == bad else None
        return read(block)

    disk.read = read_all_but_one
    prompt = ABC[:200] + cold(ABC[:200]) + "and more"
    end = run(made, prompt, "b")
    assert (cached(end), end.cache.miss) == ((0, 0, 0), Miss.UNREADABLE)
    disk.error, disk.read = None, read
    assert run(restarted(made), prompt, "c").cache.cached == 192


def cut(state):
    return state[:-4]


def say_fewer_tokens(state):
    _, made_by, last = array("i", state)
    return array("i", [0, made_by - 1, last]).tobytes()


@pytest.mark.parametrize("damage", [cut, say_fewer_tokens, lambda _state: b""])
def test_a_checkpoint_that_the_memory_does_not_take_for_its_own_is_a_miss_and_goes(damage):
    made = make()
    run(made, ABC[:200])
    made = restarted(made)
    for block in blocks_of(made.kv._store):
        if block.end == 192 and not block.tokens:
            block.payload = damage(block.payload)
    end = run(made, ABC[:200], "b")
    assert (cached(end), end.cache.miss, end.cache.position) == ((0, 0, 0), Miss.UNREADABLE, 192)
    assert made.runner.used_cells == 207, "what was computed instead stays"
    assert cached(run(restarted(made), ABC[:200], "c")) == (0, 192, 0)


def test_what_costs_more_to_bring_back_than_to_compute_is_computed():
    costs = CostModel()
    made = make(costs=costs)
    run(made, ABC[:200])
    made = restarted(made, costs=costs)
    costs.measure_restore(1, 1.0)
    end = run(made, ABC[:200], "b")
    assert (cached(end), end.cache.miss) == ((0, 0, 0), Miss.NOT_WORTH_IT)


def test_what_is_there_to_go_on_from_stays_where_more_is_not_worth_bringing_back():
    costs = CostModel()
    made = make(costs=costs)
    longer = ABC[:200] + cold(ABC[:200]) + ABC[300:400]
    run(made, longer)
    made = restarted(made, costs=costs)
    run(made, ABC[:200], "b")
    costs.measure_restore(1, 1.0)
    end = run(made, longer, "c")
    assert (cached(end), end.cache.miss, end.cache.position) == ((207, 0, 0), Miss.NOT_WORTH_IT, 207)


def test_a_request_that_ends_before_its_checkpoint_is_back_leaves_nothing():
    disk = on_disk(ABC[:200])
    disk.is_slow = True
    made = make(make_store(disk=disk))
    submit(made.engine, ask("a", ABC[:200]))
    made.engine.step()
    made.engine.step()
    blocks = [(header.start, state) for header, state in disk.files.values() if header.tokens]
    for read, (_, state) in zip(disk.reads[:3], sorted(blocks), strict=False):
        read.set_result(state)
    made.engine.step()
    assert made.runner.used_cells == 192
    assert made.runner.batches == []
    made.engine.cancel("a")
    assert_idle(made)
    assert made.runner.used_cells == 0


@pytest.mark.parametrize("failing", range(6))
def test_a_decode_that_fails_leaves_nothing_wrong_behind(failing):
    made = make(failing=[failing])
    prompts = {"a": ABC[:200], "b": ABC[:200] + "b", "c": ABC[:100] + "c"}
    events = run_to_end(made.engine, *(ask(name, prompt) for name, prompt in prompts.items()))
    assert any(isinstance(events[name][-1], Failed) for name in prompts)
    assert_idle(made)
    for name, prompt in prompts.items():
        run(made, prompt, name + name)
        made = restarted(made)


@pytest.mark.parametrize("blocks", [0, 1, 3, 6])
def test_a_small_store_keeps_to_its_size_and_every_answer_is_right(blocks):
    made = make(make_store(blocks), cells=400)
    for round_number in range(3):
        for name in "abc":
            run(made, name * 5 + ABC[:200], f"{name}{round_number}")
            tidied(made)
            made.kv._store.check()
            assert made.kv._store._ram.used_bytes <= blocks * BLOCK_BYTES


def test_with_the_last_checkpoint_the_blocks_go_that_led_to_it():
    made = make()
    run(made, ABC[:200])
    run(made, ABC[:100] + "x" * 150, "b")
    store = tidied(made).kv._store
    (first,) = store.root("").children
    second = first.child_with(tuple(ABC[64:128].encode()))
    (third,) = second.children
    assert (third.end, third.checkpoint.end, third.children[0].checkpoint.end) == (192, 192, 207)
    store._evict_from_ram(third.checkpoint)
    store.check()
    assert store.is_kept(third), "a checkpoint follows it"
    store._evict_from_ram(third.children[0].checkpoint)
    store.check()
    assert [store.is_kept(each) for each in (first, second, third)] == [True, False, False]
    assert store.why_missing(first, second.tokens) is Miss.EVICTED


def test_before_the_last_checkpoint_goes_a_block_that_is_to_be_followed_stays():
    store = make_store(2)
    first = store.add(store.root(""), range(64), bytes(BLOCK_BYTES), 1.0)
    assert store.add(first, (), bytes(BLOCK_BYTES), 1.0) is first.checkpoint
    second = store.add(first, range(64), bytes(BLOCK_BYTES), 1.0)
    store.check()
    assert (first.checkpoint, first.children) == (None, [second])


# Faults


def visit(made, seed=0):
    """Conversations that branch, restart, run side by side and give way to one another."""
    choose = random.Random(seed)
    histories = [ABC[:70]]
    for turn in range(25):
        base = choose.choice(histories)
        base = base[: choose.randrange(len(base) + 1)] if choose.random() < 0.5 else base
        prompts = [
            base + chr(choose.randrange(97, 123)) * choose.randrange(1, 99) for _ in range(choose.choice([1, 1, 3]))
        ]
        requests = [ask(f"{turn}.{number}", prompt[:500]) for number, prompt in enumerate(prompts)]
        events = run_to_end(made.engine, *requests)
        for request in requests:
            text = request.prompt[0].text
            assert text_of(events[request.id]) == cold(text)
            histories.append(text + text_of(events[request.id]))
        assert_idle(made)
        if choose.random() < 0.3:
            tidied(made)
        if choose.random() < 0.2:
            made = restarted(made, cells=1200, sequence_ids=4)


@pytest.mark.parametrize("blocks", [1000, 20])
@pytest.mark.parametrize("seed", range(4))
def test_branching_conversations_say_what_they_say_cold(blocks, seed):
    visit(make(make_store(blocks), cells=1200, sequence_ids=4), seed)


class PutsBackFirst(Checkpoints):
    """Blocks after it take it away."""

    def find(self, namespace, tokens):
        *blocks, checkpoint = super().find(namespace, tokens) or [None]
        return [checkpoint, *blocks] if checkpoint is not None else []


class PutsBackNothing(Checkpoints):
    def put_back(self, _leaf, _state):
        return True


class TakesItLater(KvBlocks):
    """When the sequence has gone on."""

    def take_checkpoint(self, leaf):
        """Nothing."""

    def _store_next(self, leaf):
        super()._store_next(leaf)
        block = self._stored.get(leaf)
        if block is not None and block.end < leaf.length:
            state = self._memory.export_checkpoint(leaf.sequence_id)
            self._store.add(block, (), state, 1.0)


class StripsNothing(Checkpoints):
    def export_cells(self):
        return self._memory.export_state(self._scratch)


class TakesThatOfTheScratch(Checkpoints):
    def take(self, leaf, block):
        copy, self._memory.copy_sequence = self._memory.copy_sequence, lambda *_args: None
        super().take(leaf, block)
        self._memory.copy_sequence = copy


class TakesTheLatestForAll(Checkpoints):
    def take(self, leaf, block):
        for each in [*block.chain()][1:-1]:
            super().take(leaf, block)
            if block.checkpoint is not None and each.checkpoint is None:
                self._store.add(each, (), block.checkpoint.payload, 1.0)


class GoesOnFromCellsAlone(KvCells):
    @property
    def needs_checkpoints(self):
        return False

    @needs_checkpoints.setter
    def needs_checkpoints(self, _value):
        """Nothing."""


class RestoresBlocksOnly(KvBlocks):
    def begin(self, leaf, namespace, tokens):
        restore = super().begin(leaf, namespace, tokens)
        return Restore(leaf, type(restore.hits)(hit for hit in restore.hits if hit.block.tokens), gap=restore.gap)


def plant(made, faulty):
    kv = made.kv
    for part in (kv, kv._cells, kv._blocks, kv._checkpoints):
        if isinstance(part, faulty.__base__) and type(part) is faulty.__base__:
            part.__class__ = faulty


@pytest.mark.parametrize(
    "faulty",
    [
        PutsBackFirst,
        PutsBackNothing,
        TakesItLater,
        StripsNothing,
        TakesThatOfTheScratch,
        TakesTheLatestForAll,
        RestoresBlocksOnly,
        GoesOnFromCellsAlone,
    ],
)
def test_the_comparison_notices_a_planted_fault(faulty):
    with pytest.raises(AssertionError):
        visit_all(faulty)


def visit_all(faulty):
    for seed in range(4):
        made = make(cells=1200, sequence_ids=4)
        plant(made, faulty)
        visit(made, seed)
