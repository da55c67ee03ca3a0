"""Checkpoints: the part of a sequence's state that cannot be cut into ranges, taken at one position and put back there.

Recurrent layers have what all tokens so far have made of their state, layers with a small window the cells of that window. It
serves only who goes on from that very position, and can be taken only while a sequence is there. All the rest of the state is
in blocks. Those come back first: bringing a block back takes away the checkpoint that a sequence had.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from pinyon.engine.block import BLOCK_TOKENS, Block, Payload
from pinyon.engine.block_store import BlockStore, Hit
from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import NativeError
from pinyon.engine.prefix_tree import Leaf

MIN_APART_TOKENS: Final = 512
CHECKPOINT_SHARE: Final = 0.01
"""In a long prompt checkpoints are so far apart, and so far that they take no more than this share of the time to compute it."""


class CheckpointMemory(Protocol):
    """The native side; native.Context is one."""

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None: ...
    def remove_sequence(self, sequence_id: int) -> None: ...
    def last_position(self, sequence_id: int) -> int: ...
    def export_checkpoint(self, sequence_id: int) -> Payload: ...
    def export_without(self, sequence_id: int, no_checkpoint: Payload) -> Payload: ...
    def import_checkpoint(self, sequence_id: int, state: Payload) -> bool: ...


class Checkpoints:
    """`scratch` is a sequence id that nothing uses but the moving of blocks."""

    def __init__(self, memory: CheckpointMemory, store: BlockStore, costs: CostModel, scratch: int) -> None:
        self._memory = memory
        self._store = store
        self._costs = costs
        self._scratch = scratch
        self._nothing = memory.export_checkpoint(scratch)
        self._size_bytes = 0

    def positions(self, length: int, known: int) -> set[int]:
        """Return where a prompt of such a length should get a checkpoint: where others may part from it.

        That is near its end, near where it has parted itself from what was `known` of it, and now and then.
        """
        by_cost = self._costs.restore_s(self._size_bytes) / CHECKPOINT_SHARE / self._costs.prefill_s(1)
        apart = block_end(max(MIN_APART_TOKENS, int(by_cost)))
        return {block_end(length - 1), block_end(known), *range(apart, length, apart)}

    def find(self, namespace: str, tokens: Sequence[int]) -> list[Hit]:
        """Return the checkpoint after the longest beginning of the tokens that has one, and before it the blocks that lead to it."""
        checkpoint = self._store.find_checkpoint(namespace, tokens)
        chain = [] if checkpoint is None else [*checkpoint.chain()][-2::-1]
        return [Hit(block, len(block.tokens)) for block in chain]

    def take(self, leaf: Leaf, block: Block) -> None:
        """Store the checkpoint of a sequence that ends with a block."""
        assert block.end == leaf.length, f"a checkpoint of {leaf.length} tokens after a block that ends at {block.end}"
        if block.checkpoint is None:
            self._memory.copy_sequence(leaf.sequence_id, self._scratch, 0, leaf.length)
            try:
                state = self._memory.export_checkpoint(self._scratch)
            except NativeError:  # nothing is kept then, and nothing else is lost
                return
            finally:
                self._memory.remove_sequence(self._scratch)
            self._size_bytes = len(state)
            # Without it all that comes before is computed again.
            self._store.add(block, (), state, self._costs.prefill_s(leaf.length))

    def put_back(self, leaf: Leaf, state: Payload) -> bool:
        """Complete a sequence that has all its blocks; False if the memory took it for another one's."""
        is_taken = self._memory.import_checkpoint(leaf.sequence_id, state)
        return is_taken and self._memory.last_position(leaf.sequence_id) == leaf.length - 1

    def export_cells(self) -> Payload:
        """Return the state of the scratch sequence without a checkpoint: that would be the one of another position."""
        self._memory.import_checkpoint(self._scratch, self._nothing)  # saves copying a large one; a window's cells stay
        return self._memory.export_without(self._scratch, self._nothing)

    def return_s(self, leaf: Leaf) -> float:
        """Return what a token's share costs of bringing a checkpoint back."""
        return self._costs.restore_s(self._size_bytes) / leaf.length


def block_end(length: int) -> int:
    """Return where the last whole block of so many tokens ends."""
    return length // BLOCK_TOKENS * BLOCK_TOKENS
