"""Watches the KV of a real engine, cell by cell: nothing is ever held for tokens but what was computed for these tokens.

Every cell is exported alone as soon as it is computed: its position and its bytes in all layers. Whatever holds the same
tokens later, in shared cells, in other ones or brought back from a block, must hold a cell that was computed for just these
tokens after just this beginning. There may be several: the bytes depend on the shape of the batch. Which of the cells were
computed is seen where batches are run, so nothing that the engine says about its cache is taken for granted.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from pinyon.engine.batch import Batch, Slice
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.engine import BatchRunner
from pinyon.engine.loader import LoadedEngine
from pinyon.engine.native import Logits
from pinyon.engine.prefix_tree import Leaf
from pinyon.engine.sequence import Sequence

TIERS = "resident", "RAM", "disk"
_END = 2**31 - 1
"""Above every position."""


class KvDiffersError(AssertionError):
    """A sequence holds something else than what was computed for its tokens."""


class KvWitness:
    """Outlives the engines that it watches, one after the other, of one model: what one has stored, the next must bring back.

    `hits` and `cells` count what was reused and compared before a request went on from it, by where it had been.
    """

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.cells: Counter[str] = Counter()
        self._computed: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """For all tokens up to one: digests of the cells that were computed for that one."""
        self._confirmed: set[tuple[bytes, bytes]] = set()
        """For all tokens up to a block's end: digests of exports of it in which each cell was compared."""

    def watch(self, loaded: LoadedEngine) -> None:
        """Watch an engine that has not computed anything yet."""
        self._loaded = loaded
        self._nothing = self._export(0, 0, _END)
        loaded.engine._runner = _WatchedRunner(self, loaded.engine._runner)

    def compare_all(self) -> None:
        """Compare all that the context holds. Raises KvDiffersError."""
        for leaf in self._loaded.engine._kv._cells._tree.leaves:
            self.compare(leaf)

    def compare(self, leaf: Leaf) -> None:
        """Compare each cell of a sequence. Raises KvDiffersError."""
        chain = [*_chain(leaf.tokens())]
        for start in range(0, leaf.length, BLOCK_TOKENS):
            end = min(start + BLOCK_TOKENS, leaf.length)
            block = chain[end - 1], _digest(self._export(leaf.sequence_id, start, end))
            if block not in self._confirmed:
                for position in range(start, end):
                    self._compare_cell(leaf, position, chain[position])
                self._confirmed.add(block)
        if self._export(leaf.sequence_id, leaf.length, _END) != self._nothing:
            raise KvDiffersError(f"sequence {leaf.sequence_id} has cells after its {leaf.length} tokens")

    def _compare_cell(self, leaf: Leaf, position: int, tokens: bytes) -> None:
        state = self._export(leaf.sequence_id, position, position + 1)
        if state == self._nothing:
            raise KvDiffersError(f"sequence {leaf.sequence_id} has no cell {position} of {leaf.length}")
        if _digest(state) not in self._computed[tokens]:
            raise KvDiffersError(
                f"cell {position} of {leaf.length} of sequence {leaf.sequence_id} has {len(state):,} bytes that were never computed for its tokens"
            )

    def compare_begun(self, sequence: Sequence, *, is_new: bool) -> None:
        """Compare what a request goes on from, and count it. Raises KvDiffersError."""
        leaf, restore = sequence.leaf, sequence.restore
        if leaf.tokens() != sequence.tokens[: leaf.length]:
            raise KvDiffersError(f"sequence {leaf.sequence_id} has other tokens than the request that goes on from it")
        if is_new:
            assert sequence.cached_tokens == leaf.length, "not all that is called cached was there, or more"
        self.compare(leaf)
        ram, disk = (0, 0) if restore is None else (restore.ram_tokens, restore.disk_tokens)
        for tier, cells in zip(TIERS, (leaf.length - ram - disk, ram, disk), strict=True):
            self.hits[tier] += cells > 0
            self.cells[tier] += cells

    def record(self, piece: Slice) -> None:
        """Take for true what has just been computed for some of a request's tokens, and for those drafted after them."""
        sequence, start = piece.sequence, piece.sequence.computed
        for position, tokens in enumerate(_chain([*sequence.tokens[:start], *piece.tokens])):
            if position >= start:
                state = self._export(sequence.leaf.sequence_id, position, position + 1)
                assert state != self._nothing, f"nothing was computed for position {position}"
                self._computed[tokens].add(_digest(state))

    def _export(self, sequence_id: int, start: int, end: int) -> memoryview:
        """The scratch id is always the same: it is part of what is exported."""
        context, scratch = self._loaded.context, self._loaded.engine._kv._blocks._scratch
        context.copy_sequence(sequence_id, scratch, start, end)
        state = context.export_state(scratch)
        context.remove_sequence(scratch)
        return state


class _WatchedRunner:
    def __init__(self, witness: KvWitness, runner: BatchRunner) -> None:
        self._witness = witness
        self._runner = runner
        self._known: dict[Sequence, tuple[Leaf, range]] = {}
        """The sequences that were computed in, and how far they may be since then. One that is not has begun anew."""

    def run(self, batch: Batch) -> Logits:
        for piece in batch.slices:
            sequence = piece.sequence
            leaf, lengths = self._known.get(sequence, (None, range(0)))
            if leaf is not sequence.leaf or sequence.computed not in lengths:
                self._witness.compare_begun(sequence, is_new=leaf is None)
        logits = self._runner.run(batch)
        for piece in batch.slices:
            self._witness.record(piece)
            end = piece.sequence.computed + piece.rows
            self._known[piece.sequence] = piece.sequence.leaf, range(end - len(piece.draft), end + 1)
        return logits


def _chain(tokens: Iterable[int]) -> Iterator[bytes]:
    """Yield for each token a digest of it and of all before it."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.to_bytes(4, "little"))
        yield digest.digest()


def _digest(state: memoryview) -> bytes:
    return hashlib.sha256(state).digest()
