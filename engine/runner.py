"""Runs a batch on llama.cpp: rows into native memory, one decode, logits out."""

from collections.abc import Callable

from pinyon.engine.batch import Batch
from pinyon.engine.native import Context, Logits, RowBuffer


class Runner:
    """`ids_of` tells which sequence ids the cells of a sequence carry, the same number for each."""

    def __init__(self, context: Context, batch_rows: int, ids_of: Callable[[int], tuple[int, ...]]) -> None:
        self._context = context
        self._ids_of = ids_of
        self._buffer = RowBuffer(batch_rows, ids_per_row=len(ids_of(0)))

    def run(self, batch: Batch) -> Logits:
        """Compute the batch; return logits of shape (rows that want them, vocabulary), in row order.

        Raises:
            NativeError: the decode failed; no sequence of the batch can go on.
        """
        tokens: list[int] = []
        positions: list[int] = []
        sequence_ids: list[tuple[int, ...]] = []
        outputs: list[int] = []
        for piece in batch.slices:
            sequence, start = piece.sequence, piece.sequence.computed
            tokens += piece.tokens
            positions += range(start, start + piece.rows)
            assert sequence.leaf is not None, "only admitted sequences are scheduled"
            sequence_ids += [self._ids_of(sequence.leaf.sequence_id)] * piece.rows
            outputs += range(len(tokens) - piece.outputs, len(tokens))
        rows = len(tokens)
        buffer = self._buffer
        buffer.tokens[:rows] = tokens
        buffer.positions[:rows] = positions
        buffer.sequence_ids[:rows] = sequence_ids
        buffer.wants_logits[:rows] = 0
        buffer.wants_logits[outputs] = 1
        self._context.decode(buffer, rows)
        return self._context.logits(len(outputs))
