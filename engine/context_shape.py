"""How a context is laid out: sequence ids, rows of a batch, windows. What a model takes of memory follows from this."""

from typing import Final, NamedTuple

from pinyon.engine.block import BLOCK_TOKENS

SEQUENCE_IDS: Final = 64
MAX_SEQUENCES: Final = SEQUENCE_IDS - 1
"""Blocks of KV are moved through the last id. With a sliding window half of the sequences only guard the other half."""
MAX_STATEFUL_SEQUENCES: Final = 8
"""For recurrent and hybrid models, and small windows: they allocate a full state per sequence id."""
MIN_BATCH_ROWS: Final = 128
MAX_BATCH_ROWS: Final = 512
"""What a step can hold: all decoding rows, and a prompt's where nobody waits for it; the less the smaller the context is."""


class ContextShape(NamedTuple):
    """With `needs_checkpoints` a sequence's state cannot be cut into blocks."""

    sequence_ids: int
    batch_rows: int
    full_window: bool
    needs_checkpoints: bool


def context_shape(context_tokens: int, *, window: int, has_state: bool, full_window: bool) -> ContextShape:
    """Return the shape of a context for a model with a window of so many tokens, 0 for none, or with a state for each sequence.

    Without `full_window` layers with a window keep just its cells, where that takes less than the whole context.
    """
    rows = min(max(context_tokens // 4 // BLOCK_TOKENS * BLOCK_TOKENS, MIN_BATCH_ROWS), MAX_BATCH_ROWS)
    is_small = 0 < window * MAX_STATEFUL_SEQUENCES < context_tokens - rows
    keeps_all = full_window or not is_small
    needs_checkpoints = has_state or not keeps_all
    return ContextShape(
        MAX_STATEFUL_SEQUENCES if needs_checkpoints else SEQUENCE_IDS, rows, keeps_all, needs_checkpoints
    )
