import pytest
from fakes import ByteTable, KvRunner, NextChunk, WholeChunks, make_kv
from kv_compare import PrefixMemory, compare_kv

from pinyon.engine.config import Limits
from pinyon.engine.events import FinishReason
from pinyon.engine.native import Candidates
from pinyon.engine.prefix_tree import Leaf, Node
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.sampler import Sampler
from pinyon.engine.scheduler import MIN_SHARED_TOKENS, Scheduler, _most_cells
from pinyon.engine.sequence import Sequence, State
from pinyon.engine.vocab import Vocab

GREEDY = SamplingParams(temperature=0)


def sequence(name, prompt_tokens, shared=0, **fields):
    """A sequence that has nothing in common with one of another first letter but `shared` tokens."""
    prompt = [0] * shared + [ord(name[0])] * (prompt_tokens - shared)
    request = GenerateRequest(name, (Text("a" * prompt_tokens),), GREEDY, **fields)
    sampler = Sampler(GREEDY, Candidates(ByteTable.size), ByteTable.size, 4096, prompt)
    return Sequence(request, prompt, Vocab(ByteTable()), sampler, 10_000)


def scheduler(*sequences, cells=1000, **options):
    memory = PrefixMemory(cells)
    made = Scheduler(make_kv(memory, **options), WholeChunks(), Limits(long_share=1.0), NextChunk())
    made.runner = KvRunner(memory)
    for one in sequences:
        made.add(one)
    return made


def step(made):
    """Schedule and compute one batch, generating a token where one is due; return (name, rows) in row order."""
    made.admit()
    batch = made.schedule()
    rows = [(piece.sequence.request.id, piece.rows) for piece in batch.slices]
    assert batch.rows == sum(count for _, count in rows) > 0
    made.runner.run(batch)
    made.take(batch)
    made._kv.take(batch, 1.0)
    for piece in batch.slices:
        if piece.outputs:
            piece.sequence.tokens.append(98)
    check(made)
    return rows


def check(made):
    made.check()
    compare_kv(made._kv, made.runner.memory)
    in_use = [leaf.sequence_id for leaf in made._kv._cells._tree.leaves if leaf.in_use]
    assert sorted(in_use) == sorted(running.leaf.sequence_id for running in made.running), "a leaf of nobody is in use"


@pytest.mark.parametrize(
    ("prompt_tokens", "chunks"),
    [(1, [1]), (63, [63]), (64, [64]), (65, [64, 1]), (100, [64, 36]), (128, [64, 64]), (200, [64, 64, 64, 8])],
)
def test_a_prompt_is_computed_in_whole_chunks_and_its_tail_alone(prompt_tokens, chunks):
    made = scheduler(sequence("a", prompt_tokens))
    assert [step(made) for _ in chunks] == [[("a", rows)] for rows in chunks]
    assert step(made) == [("a", 1)]


def test_decoding_rows_come_first_and_do_not_shrink_the_chunk():
    a, b, c = sequence("a", 3), sequence("b", 200), sequence("c", 2)
    made = scheduler(a)
    step(made)
    made.add(b)
    made.add(c)
    assert step(made) == [("a", 1), ("b", 64)]
    assert [step(made) for _ in range(2)] == [[("a", 1), ("b", 64)]] * 2
    assert step(made) == [("a", 1), ("b", 8), ("c", 2)]
    assert step(made) == [("a", 1), ("b", 1), ("c", 1)]


def test_short_prompts_share_a_chunk_in_the_order_of_admission():
    made = scheduler(*(sequence(name, tokens) for name, tokens in [("a", 30), ("b", 30), ("c", 30), ("d", 4)]))
    assert step(made) == [("a", 30), ("b", 30), ("d", 4)]
    assert step(made) == [("a", 1), ("b", 1), ("d", 1), ("c", 30)]


def test_a_prompt_is_not_cut_to_fill_a_started_chunk():
    made = scheduler(sequence("a", 36), sequence("b", 100))
    assert step(made) == [("a", 36)]
    assert step(made) == [("a", 1), ("b", 64)]
    assert step(made) == [("a", 1), ("b", 36)]


def test_requests_beyond_the_sequence_ids_wait_in_order():
    a, b, c = (sequence(name, 5) for name in "abc")
    made = scheduler(a, b, c, sequence_ids=1)
    assert step(made) == [("a", 5)]
    made.release(a)
    assert step(made) == [("b", 5)]
    assert (b.state, c.state) == (State.DECODE, State.WAITING)


def test_a_prompt_without_room_waits_and_none_overtakes_it():
    made = scheduler(sequence("a", 100), sequence("b", 100), sequence("c", 1), cells=300)
    assert step(made) == [("a", 64)]
    assert [waiting.request.id for waiting in made.waiting] == ["b", "c"]


def test_a_prompt_as_long_as_all_cells_runs_alone():
    made = scheduler(sequence("a", 200), sequence("b", 1), cells=200)
    assert [step(made) for _ in range(4)] == [[("a", 64)]] * 3 + [[("a", 8)]]


def grown_until_preempted(cells):
    """Two sequences that outgrow the cells: the step's rows in which one has lost its cells."""
    old, new = sequence("old", 1), sequence("new", 1)
    made = scheduler(old, new, cells=cells)
    rows = step(made)
    while new.state is not State.WAITING:
        rows = step(made)
    return made, old, new, rows


def test_the_newest_sequence_gives_its_cells_back():
    made, old, new, rows = grown_until_preempted(200)
    assert rows == [("old", 1)]
    assert (old.state, new.state, new.computed) == (State.DECODE, State.WAITING, 0)
    assert made._kv.held_cells == made.runner.used_cells == old.computed
    assert len(old.tokens) + len(new.tokens) >= 200


def test_a_preempted_sequence_is_the_next_to_be_admitted_and_computes_all_of_its_tokens():
    made, old, new, _ = grown_until_preempted(200)
    made.add(sequence("later", 1))
    made.release(old)
    known = len(new.tokens)
    computed = []
    while new.computed < known:
        computed += [rows for name, rows in step(made) if name == "new"]
    assert computed == [64] * (known // 64) + [known % 64]
    assert made.running[0] is new


def test_several_preempted_sequences_come_back_in_their_order():
    sequences = [sequence(name, 60) for name in "abc"]
    made = scheduler(*sequences, cells=460)
    step(made)
    assert not made.waiting
    while len(made.waiting) < 2:
        step(made)
    assert [waiting.request.id for waiting in made.in_order(made.waiting)] == ["b", "c"]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("steps", range(4))
def test_a_sequence_can_leave_in_any_state(steps, keep):
    leaving = sequence("a", 65)
    made = scheduler(leaving, sequence("b", 3))
    for _ in range(steps):
        step(made)
    made.release(leaving, keep=keep)
    check(made)
    assert [name for name, _ in step(made)] == ["b"]


@pytest.mark.parametrize(("keep", "left_cells"), [(True, 5), (False, 0)])
def test_a_sequence_that_left_gives_back_its_id_and_cells(keep, left_cells):
    a = sequence("a", 5)
    made = scheduler(a, sequence_ids=1)
    step(made)
    made.release(a, keep=keep)
    assert (made._kv.held_cells, made.runner.used_cells, made.running) == (0, left_cells, [])
    made.add(sequence("b", 6))
    assert step(made) == [("b", 6)]
    assert made.runner.used_cells == 6


@pytest.mark.parametrize(
    ("lives", "most"),
    [
        ([(5, 10)], 15),
        ([(5, 10), (5, 20)], 40),
        ([(1, 100), (50, 10)], 112),
        ([(50, 10), (1, 100), (60, 10)], 123),
        ([(10, 10), (100, 10)], 110),
    ],
    ids=["one", "two that end together", "who ends soon", "in any order", "most of it at the end"],
)
def test_those_who_end_make_room_for_the_growth_of_the_others(lives, most):
    assert _most_cells(lives) == most


# Common prefixes


def test_a_prompt_waits_for_the_beginning_that_another_one_is_computing():
    made = scheduler(sequence("a", 200, shared=130), sequence("b", 150, shared=130))
    assert [step(made) for _ in range(3)] == [[("a", 64)]] * 3
    assert step(made) == [("a", 8), ("b", 20)]


def test_whoever_has_nothing_in_common_does_not_wait():
    a, b, c = sequence("a", 130, shared=100), sequence("b", 130, shared=100), sequence("c", 10)
    made = scheduler(a, b, c)
    assert step(made) == [("a", 64)]
    assert (made.running, list(made.waiting)) == ([a, c], [b])


@pytest.mark.parametrize(("shared", "waits"), [(MIN_SHARED_TOKENS, True), (MIN_SHARED_TOKENS - 1, False)])
def test_a_short_beginning_in_common_is_not_waited_for(shared, waits):
    made = scheduler(sequence("a", 64, shared=shared), sequence("b", 64, shared=shared))
    made.admit()
    assert bool(made.waiting) == waits


def test_the_last_token_of_a_prompt_is_not_waited_for():
    made = scheduler(sequence("a", 60), sequence("a2", MIN_SHARED_TOKENS))
    made.admit()
    assert not made.waiting


def test_what_is_there_already_is_not_waited_for():
    first = sequence("first", 100, shared=100)
    made = scheduler(first)
    step(made)
    step(made)
    made.release(first)
    made.add(sequence("a", 110, shared=110))
    made.add(sequence("b", 105, shared=105))
    assert step(made) == [("a", 10), ("b", 5)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"use_cache": False}, {}), ({}, {"use_cache": False}), ({"namespace": "x"}, {}), ({}, {"namespace": "x"})],
)
def test_only_what_may_be_shared_is_waited_for(ours, theirs):
    made = scheduler(sequence("a", 50, shared=50, **ours), sequence("b", 50, shared=50, **theirs))
    made.admit()
    assert not made.waiting


def cancel(made, leader):
    leader.finish(FinishReason.CANCELLED)
    made.release(leader)


def fail(made, leader):
    leader.fail()
    made.release(leader, keep=False)


def preempt(made, leader):
    made._preempt(leader)


@pytest.mark.parametrize(
    ("happens", "rows"),
    [
        (cancel, [("b", 56)]),  # with what the leader left
        (fail, [("b", 64)]),
        (preempt, [("a", 64)]),  # whoever was preempted goes on first, with what it had computed
    ],
)
def test_a_prompt_goes_on_when_the_one_that_it_waits_for_does_not(happens, rows):
    leader = sequence("a", 300, shared=100)
    made = scheduler(leader, sequence("b", 120, shared=100))
    step(made)
    assert [waiting.request.id for waiting in made.waiting] == ["b"]
    happens(made, leader)
    check(made)
    assert step(made) == rows
    while made.waiting or any(running.state is not State.DECODE for running in made.running):
        step(made)


def test_eight_prompts_with_one_beginning_compute_it_once():
    made = scheduler(*(sequence(name, 210, shared=200) for name in "abcdefgh"), sequence_ids=16)
    while made.waiting or any(running.state is not State.DECODE for running in made.running):
        step(made)
    assert made.runner.used_cells == 200 + sum(running.computed - 200 for running in made.running)
    assert made.runner.computed.total() == made.runner.used_cells


# Faults


def hold_cells_of_nobody(made):
    made._kv._cells._tree.remove(made.running[0].leaf)


def use_too_many_cells(made):
    made.running[0].leaf.node.run += [0] * 1000


def hold_an_id_twice(made):
    root = made.running[0].leaf.node.parent
    root.children.append(Node(root, 0, [1], leaf=Leaf(made.running[0].leaf.sequence_id, None)))
    root.children[-1].leaf.node = root.children[-1]


def use_an_id_that_is_not_there(made):
    made._kv._cells._tree.fork(made._kv._cells.match("", ()), 8)


def leave_without_a_word(made):
    made.running.clear()


@pytest.mark.parametrize("fault", [use_too_many_cells, hold_an_id_twice, use_an_id_that_is_not_there])
def test_check_notices_a_planted_fault(fault):
    made = scheduler(sequence("a", 5))
    step(made)
    fault(made)
    with pytest.raises(AssertionError):
        made.check()


@pytest.mark.parametrize("fault", [hold_cells_of_nobody, leave_without_a_word])
def test_the_comparison_notices_a_planted_fault(fault):
    made = scheduler(sequence("a", 5))
    step(made)
    fault(made)
    with pytest.raises(AssertionError):
        check(made)
