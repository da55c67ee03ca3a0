"""KV is the same by bytes wherever it comes from: computed, shared in the context, brought back from RAM, or from disk after a restart.

Conversations are random, models are real. The witness compares all cells that any sequence holds; here it is watched as well.
"""

import os
import shutil
import struct
from collections import Counter
from contextlib import closing, nullcontext
from random import Random

import pytest
from asking import GREEDY, end_of
from conversation_trees import ACTIONS, Clock, ConversationTree, open_engine
from kv_bytes import KvDiffersError, KvWitness
from tiny_architectures import write_tiny_gemma3
from tiny_models import write_tiny_bpe

from pinyon.engine import shared_kv
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.block_store import Hit
from pinyon.engine.config import BATCH_ROWS, SEQUENCE_IDS
from pinyon.engine.events import Failed, Finished
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.native import Context, RowBuffer, lib
from pinyon.engine.request import GenerateRequest, Tokens

pytestmark = pytest.mark.model

TIERS = "resident", "RAM", "disk"
CONTEXT = 512
WINDOW = 100
LONG_TREES = int(os.environ.get("PINYON_TEST_TREES", "200"))
"""How many trees the long test grows for each model."""


@pytest.fixture(scope="module", params=["llama", "windowed"])
def tiny_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return write_tiny_bpe(folder / "m.gguf", "gpt-2", context=CONTEXT)
    return write_tiny_gemma3(folder / "m.gguf", window=WINDOW)


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    return write_tiny_bpe(tmp_path_factory.mktemp("llama") / "m.gguf", "gpt-2", context=CONTEXT)


# Conversations


TRAINED = [
    ConversationTree.next_turn,
    ConversationTree.rest,
    ConversationTree.press,
    ConversationTree.next_turn,
    ConversationTree.neighbour,
    ConversationTree.edit,
    ConversationTree.restart,
    ConversationTree.alternate,
    ConversationTree.shorter,
]


def grow(model, folder, trees, actions, **kwargs):
    """Grow trees; return what was compared in all of them, and what was done."""
    hits, cells, done = Counter(), Counter(), Counter()
    for seed in range(trees):
        witness = KvWitness()
        with closing(ConversationTree(model, folder / f"{seed}", seed, witness, **kwargs)) as tree:
            tree.grow(actions)
        for total, counted in (hits, witness.hits), (cells, witness.cells), (done, tree.actions):
            total.update(counted)
        shutil.rmtree(folder / f"{seed}")
    print(f"{trees} trees: {dict(hits)} hits with {dict(cells)} cells were compared, in {dict(done)}")
    return hits, cells, done


def require(counted, least):
    """Where nothing is compared, nothing differs."""
    assert all(counted[tier] >= least for tier in TIERS), f"only {counted} compared, of each {least} are wanted"


def test_kv_is_the_same_wherever_it_comes_from(tiny_model, tmp_path):
    hits, cells, done = grow(tiny_model, tmp_path, trees=6, actions=30)
    require(hits, 15)
    require(cells, 1000)
    assert done.keys() == {action.__name__ for action in ACTIONS}


def test_kv_of_a_trained_model_is_the_same_wherever_it_comes_from(smollm2, tmp_path):
    witness = KvWitness()
    with closing(ConversationTree(smollm2, tmp_path / "kv", 0, witness, contexts=(320,))) as tree:
        for action in TRAINED:
            tree.do(action)
    require(witness.hits, 1)
    require(witness.cells, BLOCK_TOKENS)


def test_a_comparison_of_nothing_is_noticed(tiny_llama, tmp_path):
    hits, *_ = grow(tiny_llama, tmp_path, trees=1, actions=1)
    with pytest.raises(AssertionError, match="only"):
        require(hits, 1)


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize(
    ("name", "contexts"),
    [
        ("smollm2", (384, 512)),
        ("gemma3:270m", (1024, 1536)),  # its window is 512
        ("qwen2.5-coder:0.5b", (384, 512)),
        ("qwen2.5-coder:1.5b", (384, 512)),
    ],
)
def test_kv_is_the_same_in_hundreds_of_trees(catalogue_model, name, contexts, tmp_path):
    hits, cells, _ = grow(catalogue_model(name), tmp_path, LONG_TREES, 30, contexts=contexts)
    require(hits, LONG_TREES)
    require(cells, LONG_TREES * BLOCK_TOKENS)


# One prompt: what the comparison stands on


class Room:
    """An engine, one request after the other, and restarts."""

    def __init__(self, model, folder):
        self._model, self._folder = model, folder
        self.witness = KvWitness()
        self.clock = Clock()
        self.start()

    def start(self):
        self.loaded = open_engine(
            self._model, self._folder, self.clock, context_tokens=CONTEXT, ram_blocks=100, disk_blocks=100
        )
        self.engine, self.kv = self.loaded.engine, self.loaded.engine._kv
        self.witness.watch(self.loaded)

    def submit(self, name, tokens, **fields):
        request = GenerateRequest(name, (Tokens(tuple(tokens)),), GREEDY, **{"max_tokens": 1, **fields})
        self.engine.submit(self.engine.prepare(request))

    def ask(self, tokens, **fields):
        """Return the last event. Others go on meanwhile."""
        self.submit("asked", tokens, **fields)
        events = []
        while not any(isinstance(event, Finished | Failed) for event in events):
            events += [event for name, event in self.engine.step() if name == "asked"]
        return end_of(events)

    def store(self):
        """Have everything in RAM, and nothing more on disk yet."""
        self.kv._blocks.save(float("inf"))

    def empty(self):
        """Drop everything from the context; it is in RAM."""
        self.store()
        assert self.kv.make_room(CONTEXT)

    def restart(self):
        self.close()
        self.start()

    def close(self):
        self.engine.close()
        self.loaded.close()

    @property
    def memory(self):
        return self.loaded.context._memory

    def leaf(self, tokens):
        """The sequence that holds these tokens."""
        return next(leaf for leaf in self.kv._cells._tree.leaves if leaf.tokens() == [*tokens])

    def block(self, tokens, start):
        """The stored block of some tokens from a position on."""
        return next(hit.block for hit in self.kv._store.find("", tokens) if hit.block.start == start)


def tokens_of(seed, count):
    """Tokens that both tiny vocabularies have, and none of them ends an answer."""
    return [*Random(seed).choices(range(10, 250), k=count)]


PROMPT, OTHER = tokens_of(0, 200), tokens_of(1, 200)
SAME_END = OTHER[:64] + PROMPT[64:]
"""Other KV for the same tokens from position 64 on."""


@pytest.fixture
def make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_kv, "CELL_SHARE", 0)  # what is idle stays until its cells are needed
    rooms = []

    def make(model):
        rooms.append(Room(model, tmp_path / f"kv {len(rooms)}"))
        return rooms[-1]

    yield make
    for room in rooms:
        room.close()


@pytest.fixture
def room(make_room, tiny_llama):
    return make_room(tiny_llama)


@pytest.fixture
def any_room(make_room, tiny_model):
    return make_room(tiny_model)


def test_what_is_taken_for_true_is_what_a_bare_loop_computes(any_room):
    any_room.ask(PROMPT)
    cells = any_room.kv._cells
    model, log = any_room.loaded.model, any_room.loaded.context._log
    bare = Context(model, log, cells=CONTEXT, sequence_ids=SEQUENCE_IDS, batch_rows=BATCH_ROWS, threads=1)
    rows = RowBuffer(BLOCK_TOKENS)
    for start in range(0, len(PROMPT), BLOCK_TOKENS):
        tokens = PROMPT[start : start + BLOCK_TOKENS]
        rows.tokens[: len(tokens)] = tokens
        rows.positions[: len(tokens)] = range(start, start + len(tokens))
        rows.wants_logits[len(tokens) - 1] = 1
        bare.decode(rows, len(tokens))
    leaf = any_room.leaf(PROMPT)
    any_room.witness.compare(leaf)
    scratch = any_room.kv._blocks._scratch
    for position in range(len(PROMPT)):
        states = []
        for context, sequence_id in (bare, 0), (any_room.loaded.context, leaf.sequence_id):
            context.copy_sequence(sequence_id, scratch, position, position + 1)
            states.append(context.export_state(scratch))
            context.remove_sequence(scratch)
        assert states[0] == states[1], f"cell {position}"
    bare.close()
    assert cells.free == CONTEXT - len(PROMPT)


@pytest.mark.parametrize("tier", TIERS)
def test_hits_are_counted_where_they_come_from(any_room, tier):
    any_room.ask(PROMPT)
    assert any_room.witness.hits.total() == 0
    if tier == "RAM":
        any_room.empty()
    if tier == "disk":
        any_room.restart()
    any_room.ask(PROMPT)
    assert {tier: any_room.witness.cells[tier] for tier in TIERS} == {**dict.fromkeys(TIERS, 0), tier: 199}


def test_cells_that_lie_apart_hold_the_same(any_room):
    prompt, unknown = PROMPT[:130], OTHER[:130]
    any_room.ask(prompt)
    any_room.empty()
    neighbours = [f"neighbour {number}" for number in range(6)]
    for number, name in enumerate(neighbours):
        any_room.submit(name, [10 + number], use_cache=False, ignore_eos=True, max_tokens=CONTEXT)
    while any_room.kv._cells.free >= len(neighbours):
        any_room.engine.step()
    for number, name in enumerate(neighbours):
        if number % 3:
            any_room.engine.cancel(name)
    assert any_room.kv._cells.free > CONTEXT / 2, "and nowhere more than 8 of them together"
    any_room.ask(prompt)
    assert any_room.witness.cells == {"RAM": 129, "resident": 0, "disk": 0}
    any_room.ask(unknown)
    any_room.witness.compare_all()
    any_room.restart()
    any_room.ask(unknown)
    assert any_room.witness.cells == {"RAM": 129, "resident": 0, "disk": 129}


# Planted faults: in the context


def lose_cells(room, start, end):
    leaf = room.leaf(PROMPT)
    lib.llama_memory_seq_rm(room.memory, leaf.sequence_id, start, end)


def lose_a_cell(room):
    lose_cells(room, 100, 101)


def lose_the_last_cell(room):
    lose_cells(room, 199, 200)


def lose_a_block(room):
    lose_cells(room, 64, 128)


def take_a_cell_of_another_prefix(room):
    lose_a_cell(room)
    room.loaded.context.copy_sequence(room.leaf(SAME_END).sequence_id, room.leaf(PROMPT).sequence_id, 100, 101)


def take_a_block_of_another_prefix(room):
    lose_a_block(room)
    room.loaded.context.copy_sequence(room.leaf(SAME_END).sequence_id, room.leaf(PROMPT).sequence_id, 64, 128)


def shift_a_block(room):
    """Put it one position later, as its cells and its rotated keys say, too."""
    lose_cells(room, 128, 129)
    lib.llama_memory_seq_add(room.memory, room.leaf(PROMPT).sequence_id, 64, 128, 1)


def hold_a_position_twice(room):
    room.loaded.context.copy_sequence(room.leaf(SAME_END).sequence_id, room.leaf(PROMPT).sequence_id, 100, 101)


def hold_more_than_the_tokens(room):
    other = room.leaf(SAME_END)
    room.ask([*SAME_END, *range(20, 30)])
    other = room.leaf([*SAME_END, *range(20, 30)])
    room.loaded.context.copy_sequence(other.sequence_id, room.leaf(PROMPT).sequence_id, 200, 201)


IN_THE_CONTEXT = [
    lose_a_cell,
    lose_the_last_cell,
    lose_a_block,
    take_a_cell_of_another_prefix,
    take_a_block_of_another_prefix,
    shift_a_block,
    hold_a_position_twice,
    hold_more_than_the_tokens,
]


@pytest.mark.parametrize("plant", IN_THE_CONTEXT)
def test_a_fault_in_the_context_is_noticed(room, plant):
    room.ask(PROMPT)
    room.ask(SAME_END)
    room.witness.compare_all()
    plant(room)
    with pytest.raises(KvDiffersError):
        room.witness.compare_all()


@pytest.mark.parametrize("plant", set(IN_THE_CONTEXT) - {hold_more_than_the_tokens})
def test_a_fault_in_the_context_is_noticed_when_a_request_goes_on_from_it(room, plant):
    room.ask(PROMPT)
    room.ask(SAME_END)
    plant(room)
    with pytest.raises(KvDiffersError):
        room.ask([*PROMPT, *OTHER])


def test_cells_that_a_window_gives_to_others_are_noticed(make_room, tmp_path, monkeypatch):
    model = write_tiny_gemma3(tmp_path / "m.gguf", window=WINDOW)
    for is_guarded in True, False:
        if not is_guarded:
            monkeypatch.setattr(KvCells, "ids_of", lambda _cells, sequence_id: (sequence_id,))
        room = make_room(model)
        room.submit("neighbour", OTHER[:50], use_cache=False, ignore_eos=True, max_tokens=CONTEXT)
        room.ask(PROMPT)
        room.engine.cancel("neighbour")
        room.ask(OTHER, use_cache=False)  # takes the cells that the first one left, and those that come then
        with nullcontext() if is_guarded else pytest.raises(KvDiffersError, match="bytes that were never computed"):
            room.witness.compare_all()


# Planted faults: in a stored block


def flipped(state, at):
    damaged = bytearray(state)
    damaged[at] ^= 1
    return bytes(damaged)


def flip_a_bit(room, part):
    block = room.block(PROMPT, 64)
    block.payload = flipped(block.payload, round(part * (len(block.payload) - 1)))


def flip_a_bit_of_the_first_value(room):
    flip_a_bit(room, 0.1)


def flip_a_bit_in_the_middle(room):
    flip_a_bit(room, 0.5)


def flip_the_last_bit(room):
    flip_a_bit(room, 1)


def store_under_another_prefix(room):
    room.block(PROMPT, 64).payload = room.block(SAME_END, 64).payload


def store_cells(room, start, end):
    """Let the block from 64 to 128 hold other cells of the prompt."""
    context, scratch = room.loaded.context, room.kv._blocks._scratch
    context.copy_sequence(room.leaf(PROMPT).sequence_id, scratch, start, end)
    block = room.block(PROMPT, 64)
    block.payload = bytes(context.export_state(scratch))
    block.payload_bytes = len(block.payload)
    context.remove_sequence(scratch)


def store_a_cell_less(room):
    store_cells(room, 64, 127)


def store_a_shifted_block(room):
    store_cells(room, 63, 127)


def store_a_block_shifted_under_its_positions(room):
    store_cells(room, 63, 127)
    block, scratch = room.block(PROMPT, 64), room.kv._blocks._scratch
    for position in reversed(range(63, 127)):
        found, right = (struct.pack("<iii", each, 1, scratch) for each in (position, position + 1))
        assert block.payload.count(found) == 1
        block.payload = block.payload.replace(found, right)


def store_no_cells(room):
    store_cells(room, 300, 364)


STORED = [
    flip_a_bit_of_the_first_value,
    flip_a_bit_in_the_middle,
    flip_the_last_bit,
    store_under_another_prefix,
    store_a_cell_less,
    store_a_shifted_block,
    store_a_block_shifted_under_its_positions,
    store_no_cells,
]


@pytest.mark.parametrize("tier", ["RAM", "disk"])
@pytest.mark.parametrize("plant", STORED)
def test_a_fault_in_a_stored_block_is_noticed(room, plant, tier):
    room.ask(PROMPT)
    room.ask(SAME_END)
    room.store()
    plant(room)
    if tier == "RAM":
        room.empty()
    else:
        room.restart()
    with pytest.raises(KvDiffersError):
        room.ask(PROMPT)


# Planted faults: in the engine


class Faulty:
    """The context, as a part of the engine sees it."""

    def __init__(self, memory):
        self._memory = memory

    def __getattr__(self, name):
        return getattr(self._memory, name)


class CopiesACellLess(Faulty):
    def copy_sequence(self, source, target, start, end):
        self._memory.copy_sequence(source, target, start, end - 1)


class CopiesFromTheNextPositionOn(Faulty):
    def copy_sequence(self, source, target, start, end):
        self._memory.copy_sequence(source, target, start + 1, end)


class FlipsABit(Faulty):
    def export_state(self, sequence_id):
        return flipped(self._memory.export_state(sequence_id), -1)


class BringsBackTheFirstBlockAlways(Faulty):
    first = None

    def import_state(self, sequence_id, state):
        self.first = self.first or state
        return self._memory.import_state(sequence_id, self.first)


def in_cells(fault):
    def plant(loaded):
        cells = loaded.engine._kv._cells
        cells._memory = fault(cells._memory)

    return plant


def in_blocks(fault):
    def plant(loaded):
        blocks = loaded.engine._kv._blocks
        blocks._memory = fault(blocks._memory)

    return plant


def find_whatever_is_long_enough(loaded):
    store = loaded.engine._kv._store

    def find(namespace, tokens):
        block, hits = store.root(namespace), []
        while (
            block.children
            and len(block.children[-1].tokens) == BLOCK_TOKENS
            and block.end + BLOCK_TOKENS <= len(tokens)
        ):
            block = block.children[-1]
            hits.append(Hit(block, BLOCK_TOKENS))
        return hits

    store.find = find


@pytest.mark.parametrize(
    "plant",
    [
        in_cells(CopiesACellLess),
        in_cells(CopiesFromTheNextPositionOn),
        in_blocks(CopiesACellLess),
        in_blocks(CopiesFromTheNextPositionOn),
        in_blocks(FlipsABit),
        in_blocks(BringsBackTheFirstBlockAlways),
        find_whatever_is_long_enough,
    ],
)
def test_a_faulty_engine_is_noticed_in_conversations(tiny_llama, tmp_path, plant):
    with pytest.raises(KvDiffersError, match="sequence"):
        grow(tiny_llama, tmp_path, trees=6, actions=30, plant=plant)
