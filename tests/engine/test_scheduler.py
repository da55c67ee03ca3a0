import pytest
from fakes import ByteTable

from pinyon.engine.native import Candidates
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.sampler import Sampler
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence, State
from pinyon.engine.vocab import Vocab

CHUNK = 64
GREEDY = SamplingParams(temperature=0)


def sequence(name, prompt_tokens):
    prompt = [97] * prompt_tokens
    request = GenerateRequest(name, (Text("a" * prompt_tokens),), GREEDY)
    sampler = Sampler(GREEDY, Candidates(ByteTable.size), ByteTable.size, 4096, prompt)
    return Sequence(request, prompt, Vocab(ByteTable()), sampler, 10_000)


def scheduler(*sequences, cells=10_000, sequence_ids=8):
    freed = []
    made = Scheduler(cells=cells, sequence_ids=sequence_ids, chunk_rows=CHUNK, free_cells_of=freed.append)
    made.freed = freed
    for one in sequences:
        made.add(one)
    return made


def step(made):
    """Schedule and compute one batch, generating a token where one is due; return (name, rows) in row order."""
    batch = made.schedule()
    rows = [(piece.sequence.request.id, piece.rows) for piece in batch.slices]
    assert batch.rows == sum(count for _, count in rows) > 0
    for piece in batch.slices:
        due = piece.wants_logits
        piece.sequence.advance(piece.rows)
        if due:
            piece.sequence.tokens.append(98)
    made.check()
    return rows


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
    assert len(made.freed) == 1
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
    made = scheduler(*sequences, cells=400)
    step(made)
    assert not made.waiting
    while len(made.waiting) < 2:
        step(made)
    assert [waiting.request.id for waiting in made.waiting] == ["b", "c"]


@pytest.mark.parametrize("steps", range(4))
def test_a_sequence_can_leave_in_any_state(steps):
    leaving = sequence("a", 65)
    made = scheduler(leaving, sequence("b", 3))
    for _ in range(steps):
        step(made)
    made.release(leaving)
    made.check()
    assert [name for name, _ in step(made)] == ["b"]


def test_a_sequence_that_left_gives_back_its_id_and_cells():
    a = sequence("a", 5)
    made = scheduler(a, sequence_ids=1)
    step(made)
    made.release(a)
    assert (made.freed, made.used_cells, made.running) == ([0], 0, [])
    made.add(sequence("b", 5))
    assert step(made) == [("b", 5)]


def hold_an_id_twice(made):
    made._free_ids.append(made.running[0].sequence_id)


def use_too_many_cells(made):
    made.running[0].computed = 10_001


def lose_an_id(made):
    made._free_ids.pop()


@pytest.mark.parametrize(
    "fault",
    [
        hold_an_id_twice,
        use_too_many_cells,
        lose_an_id,
    ],
)
def test_check_notices_a_planted_fault(fault):
    made = scheduler(sequence("a", 5))
    step(made)
    fault(made)
    with pytest.raises(AssertionError):
        made.check()
