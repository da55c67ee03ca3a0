"""How much room a step needs for what it computes in between, apart from weights and KV: an estimate, within a few per cent.

What llama.cpp reserves depends on the graph of an architecture and on how its allocator reuses memory. The terms below are those
of the widest moments, found by comparing them with reservations of many shapes of llama.cpp b11434 (`no_alloc`); a test does so again.
"""

from typing import Final

from pinyon.models.memory.kv import KvChoice, padded, window_cells
from pinyon.models.memory.sizes import ModelSizes, Widths

_FLOAT_BYTES: Final = 4
_MASK_BYTES: Final = 2
"""One for each row and cell: what a token may look at; with flash attention in half precision."""
_OPERATION_BYTES: Final = 1000
_FEWEST_OPERATIONS: Final = 1024
_QUANTISED_ROW_BYTES: Final = 34 / 32
"""Rows are multiplied as Q8_0: 34 bytes for 32 numbers."""


def compute_bytes(sizes: ModelSizes, choice: KvChoice) -> int:
    """Return the bytes of the compute buffer of one device that computes layers, and the output.

    The largest of: the masks and the widest moment of a layer, of `batch_rows` rows; the output layer, of a row for each sequence.
    """
    rows = min(choice.batch_rows, padded(choice.cells))
    layer = _FLOAT_BYTES * (rows * _layer_elements(sizes) + choice.sequences * sizes.widths.state)
    logits = choice.sequences * (sizes.vocabulary + sizes.widths.embedding) + 2 * rows * sizes.widths.embedding
    return max(_mask_bytes(sizes, choice, rows) + layer, _FLOAT_BYTES * logits)


def output_bytes(sizes: ModelSizes, choice: KvChoice) -> int:
    """Return the bytes of the buffer that logits are read from: vocabulary x sequences x 4 (llama_context::output_reserve)."""
    return _FLOAT_BYTES * sizes.vocabulary * choice.sequences


def work_bytes(sizes: ModelSizes, choice: KvChoice) -> int:
    """Return the bytes in which the CPU keeps the rows that it multiplies, quantised."""
    widths = sizes.widths
    widest = max(
        widths.embedding,
        widths.feed_forward,
        widths.queries,
        widths.recurrence,
        widths.experts_used * widths.expert_feed_forward,
    )
    return int(choice.batch_rows * widest * _QUANTISED_ROW_BYTES)


def graph_bytes(sizes: ModelSizes, choice: KvChoice) -> int:
    """Return the bytes in which llama.cpp describes a step: 1,000 for each operation that it expects, measured."""
    graph = sizes.graph
    operations = max(_FEWEST_OPERATIONS, graph.tensors * graph.for_each_tensor, choice.batch_rows * graph.for_each_row)
    return _OPERATION_BYTES * operations


def _layer_elements(sizes: ModelSizes) -> int:
    """Return the numbers that one row needs at the widest moment of a layer.

    Attention holds its input, queries and keys before and after their rotation, and values; feed forward the residual stream, its input and
    the two wide products beside their product; experts as many of them as a token uses; a recurrent layer its projections and convolution.
    """
    widths = sizes.widths
    stream = 3 * widths.embedding + widths.queries
    attention = widths.embedding + 2 * widths.queries + 3 * widths.keys
    dense = 0 if widths.experts_used else 3 * widths.feed_forward
    return max(attention, stream + dense, stream + _expert_elements(widths), 7 * widths.recurrence)


def _expert_elements(widths: Widths) -> int:
    """Return the numbers for the experts of one row: two wide products and theirs, and a result for each expert.

    The results go where the two wide products were if they fit there; narrow products go where the row itself was.
    """
    results = widths.experts_used * widths.embedding
    wide = widths.experts_used * widths.expert_feed_forward
    if wide <= widths.embedding:
        return results
    return 3 * wide + (0 if 2 * wide >= results else results)


def _mask_bytes(sizes: ModelSizes, choice: KvChoice, rows: int) -> int:
    attending = [layer.is_windowed for layer in sizes.kept.layers if layer.key_elements]
    masked = padded(choice.cells) * (False in attending) + window_cells(sizes.kept, choice) * (True in attending)
    return _MASK_BYTES * rows * masked
