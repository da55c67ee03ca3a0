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


def compare_kv(kv: SharedKv, memory: PrefixMemory) -> None:
    """Raise AssertionError unless each sequence id holds the KV of its leaf's tokens, nothing else is held, and the counts agree."""
    compare_cells(kv._cells, memory, kv._cells._tree.leaves)


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
    """Raise AssertionError unless each block in RAM is the KV of its tokens after what its parents hold."""
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
    for child in block.children:
        _compare_below(child, path)
