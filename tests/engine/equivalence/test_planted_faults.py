"""The comparison notices what it is there for: wrong KV in the context, in stored blocks, and engines that make it."""

import struct
from contextlib import nullcontext

import pytest
from conversation_trees import grow
from kv_bytes import KvDiffersError
from watched_room import CONTEXT, OTHER, PROMPT, SAME_END

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.block_store import Hit
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.native import lib

pytestmark = pytest.mark.model

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


def test_cells_that_a_window_gives_to_others_are_noticed(make_room, tiny_windowed, monkeypatch):
    for is_guarded in True, False:
        if not is_guarded:
            monkeypatch.setattr(KvCells, "ids_of", lambda _cells, sequence_id: (sequence_id,))
        room = make_room(tiny_windowed)
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
