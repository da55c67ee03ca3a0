"""A fake of llama.cpp's memory whose cells depend on all tokens before them, as KV does, and the comparison of all that it holds
with what the engine says. Time is simulated: it passes while something is computed or moved.
"""

from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate

from kv_memory import UnifiedMemory

from pinyon.engine.block import Block
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.prefix_tree import Leaf
from pinyon.engine.shared_kv import SharedKv

ROW_S, MOVE_S = 1e-3, 1e-4
"""What computing a token takes, and moving a block."""
_TOKEN_BITS, _PREFIX_BITS = 9, 22


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def kv_of(tokens: Sequence[int], before: int = 0) -> list[int]:
    """Return what cells must hold: each its token, and a digest of it and of all before it. `before` is the last cell before."""
    mask = (1 << _PREFIX_BITS) - 1
    digests = accumulate(
        tokens, lambda digest, token: (digest * 1_000_003 + token + 1) & mask, initial=before >> _TOKEN_BITS
    )
    next(digests)
    return [digest << _TOKEN_BITS | token for digest, token in zip(digests, tokens, strict=True)]


class PrefixMemory(UnifiedMemory):
    """`clock` is moved on by what is done here."""

    def __init__(self, cells: int, window: int = 0) -> None:
        super().__init__(cells, window)
        self.clock = Clock()

    def tokens_of(self, sequence_id: int) -> list[int]:
        """Return a sequence's tokens; AssertionError if a position is missing, or has the KV of another prefix."""
        held = super().tokens_of(sequence_id)
        tokens = [value & (1 << _TOKEN_BITS) - 1 for value in held]
        assert held == kv_of(tokens), f"sequence {sequence_id} has KV of another prefix"
        return tokens

    def compute(self, ids: Sequence[int], tokens: Sequence[int]) -> bool:
        self.clock.now += ROW_S * len(tokens)
        held = self.held_by(ids[0])
        return super().compute(ids, kv_of(tokens, held[-1].token if held else 0))

    def export_state(self, sequence_id: int) -> bytes:
        self.clock.now += MOVE_S
        return super().export_state(sequence_id)

    def import_state(self, sequence_id: int, state: bytes) -> bool:
        self.clock.now += MOVE_S
        return super().import_state(sequence_id, state)


class StatefulMemory(PrefixMemory):
    """As a hybrid model's memory: beside its cells a sequence has a state, which all its tokens have made.

    As in llama.cpp, a copy and an import replace the target's state whatever their range, also by none, an export holds it, and
    a decode goes on from whatever is there.
    """

    def __init__(self, cells: int) -> None:
        super().__init__(cells)
        self.states: dict[int, tuple[int, int]] = {}
        """How many tokens made it, and what is in the cell of the last."""

    def tokens_of(self, sequence_id: int) -> list[int]:
        """Return a sequence's tokens; AssertionError if its cells or its state are not theirs."""
        tokens = super().tokens_of(sequence_id)
        expected = (len(tokens), kv_of(tokens)[-1]) if tokens else None
        assert self.states.get(sequence_id) == expected, f"sequence {sequence_id} has the state of other tokens"
        return tokens

    def last_position(self, sequence_id: int) -> int:
        made_by, _ = self.states.get(sequence_id, (0, 0))
        return min(super().last_position(sequence_id), made_by - 1)

    def compute(self, ids: Sequence[int], tokens: Sequence[int]) -> bool:
        is_done = super().compute(ids, tokens)
        for sequence_id in ids if is_done and tokens else ():
            made_by, last = self.states.get(sequence_id, (0, 0))
            self.states[sequence_id] = made_by + len(tokens), kv_of(tokens, last)[-1]
        return is_done

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        super().copy_sequence(source, target, start, end)
        self._set_state(target, self.states.get(source, ()))

    def remove_sequence(self, sequence_id: int) -> None:
        super().remove_sequence(sequence_id)
        self._set_state(sequence_id, ())

    def export_state(self, sequence_id: int) -> bytes:
        return super().export_state(sequence_id) + array("i", self.states.get(sequence_id, ())).tobytes()

    def import_state(self, sequence_id: int, state: bytes) -> bool:
        values = array("i", state[: len(state) // 4 * 4])
        end = 2 + 2 * values[1] if len(values) > 1 else 0
        is_taken = super().import_state(sequence_id, state[: 4 * end] if len(values) in {end, end + 2} else b"")
        self._set_state(sequence_id, values[end:] if is_taken else ())
        return is_taken

    def export_without(self, sequence_id: int, no_checkpoint: bytes) -> bytes:
        assert len(no_checkpoint) == 4, "it is a sequence's"
        return super().export_state(sequence_id)

    def export_checkpoint(self, sequence_id: int) -> bytes:
        self.clock.now += MOVE_S
        return array("i", [sequence_id, *self.states.get(sequence_id, ())]).tobytes()

    def import_checkpoint(self, sequence_id: int, state: bytes) -> bool:
        """Replace a sequence's state; False, and none left, for truncated bytes."""
        self.clock.now += MOVE_S
        is_whole = len(state) in {4, 12}
        self._set_state(sequence_id, array("i", state)[1:] if is_whole else ())
        return is_whole

    def _set_state(self, sequence_id: int, state: Sequence[int]) -> None:
        if state:
            made_by, last = state
            self.states[sequence_id] = made_by, last
        else:
            self.states.pop(sequence_id, None)


def compare_kv(kv: SharedKv, memory: PrefixMemory) -> None:
    """Raise AssertionError unless each sequence id holds the KV of its leaf's tokens, nothing else is held, and the counts agree."""
    compare_cells(kv._cells, memory, kv._cells._tree.leaves)
    if isinstance(memory, StatefulMemory):
        assert memory.states.keys() <= {leaf.sequence_id for leaf in kv._cells._tree.leaves}, "a state of nobody"


def compare_cells(cells: KvCells, memory: UnifiedMemory, leaves: Collection[Leaf]) -> None:
    """As compare_kv, with just these leaves."""
    cells.check()
    for leaf in leaves:
        for sequence_id in cells.ids_of(leaf.sequence_id):
            assert memory.tokens_of(sequence_id) == leaf.tokens(), f"{sequence_id} does not hold its leaf's tokens"
    known = {sequence_id for leaf in leaves for sequence_id in cells.ids_of(leaf.sequence_id)}
    assert {sequence_id for cell in memory.cells for sequence_id in cell.ids} <= known, "cells of nobody"
    in_use = {sequence_id for leaf in leaves if leaf.in_use for sequence_id in cells.ids_of(leaf.sequence_id)}
    assert cells.free == memory.free, f"{memory.free} cells are free, {cells.free} counted"
    available = sum(in_use.isdisjoint(cell.ids) for cell in memory.cells)
    assert cells.available == available, f"{available} cells could be free, {cells.available} counted"


def compare_blocks(kv: SharedKv) -> None:
    """Raise AssertionError unless each block in RAM is the KV of its tokens after what its parents hold, checkpoints their state."""
    for root in kv._store._roots.values():
        _compare_below(root, [])


def _compare_below(block: Block, before: list[int]) -> None:
    assert block.start == len(before), f"a block starts at {block.start} after {len(before)} tokens"
    path = [*before, *block.tokens]
    if block.payload is not None:
        _, count, *pairs = array("i", bytes(block.payload))
        assert count == len(block.tokens)
        assert pairs[::2] == [*range(block.start, block.end)], "a block holds other positions"
        assert pairs[1::2] == kv_of(path)[block.start :], "a block holds the KV of another prefix"
    if block.checkpoint is not None and block.checkpoint.payload is not None:
        _, *state = array("i", bytes(block.checkpoint.payload))
        assert state == [block.end, kv_of(path)[-1]], "a checkpoint is the state of other tokens"
    for child in block.children:
        _compare_below(child, path)
