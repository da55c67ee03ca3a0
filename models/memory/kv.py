"""How many bytes a model's keys, values and states take, to the byte."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pinyon.models.ggml_types import GGML_TYPES, GgmlType
from pinyon.models.memory.layers import KeptLayers, Layer

CELL_PADDING: Final = 256
"""llama.cpp rounds the cells of a context, and of a small window, up to this."""
_STATE_BYTES: Final = 4
_BY_NAME: Final = {kind.name.lower(): kind for kind in GGML_TYPES.values()}


class KvType(StrEnum):
    """How keys and values are stored. Fewer bits make room for more context and can cost quality."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"

    @property
    def ggml(self) -> GgmlType:
        return _BY_NAME[self.value]


@dataclass(frozen=True, slots=True)
class KvChoice:
    """A context: its cells, how many sequences may be in it, the rows of its largest batch, the type of keys and values.

    Without `full_window` a layer with a window has cells for the window of each sequence and one batch only.
    """

    cells: int
    sequences: int
    batch_rows: int
    type: KvType = KvType.F16
    full_window: bool = True


def bytes_per_token(kept: KeptLayers, kv_type: KvType) -> int:
    """Return what one token takes in all layers that keep cells.

    Sum over the layers of kv_heads x (key_dim x bytes_k + value_dim x bytes_v), where a block of a quantised type holds 32 elements
    (ggml_row_size); windowed layers count as others do.
    """
    return sum(_cell_bytes(layer, kv_type.ggml) for layer in kept.layers)


def layer_bytes(kept: KeptLayers, choice: KvChoice) -> tuple[int, ...]:
    """Return the bytes that llama.cpp allocates for each layer's cells and states.

    A layer's cells are cells x (key row + value row), where a row holds all heads of a token (llama_kv_cache); a layer with a small window has
    window x sequences + batch_rows cells, at most those of the context (llama_kv_cache_iswa); both are rounded up to 256. A state is
    F32 and there is one for each sequence (llama_memory_recurrent).
    """
    cells, windowed = padded(choice.cells), window_cells(kept, choice)
    return tuple(
        (windowed if layer.is_windowed else cells) * _cell_bytes(layer, choice.type.ggml)
        + choice.sequences * layer.state_elements * _STATE_BYTES
        for layer in kept.layers
    )


def window_cells(kept: KeptLayers, choice: KvChoice) -> int:
    """Return the cells of a layer that has a window."""
    cells = padded(choice.cells)
    if choice.full_window:
        return cells
    return padded(min(cells, kept.window * choice.sequences + choice.batch_rows))


def kv_bytes(kept: KeptLayers, choice: KvChoice) -> int:
    """Return the bytes of all layers together, as `layer_bytes`."""
    return sum(layer_bytes(kept, choice))


def possible_types(kept: KeptLayers) -> tuple[KvType, ...]:
    """Return the types whose blocks divide every key and value of this model; llama.cpp takes no others."""
    return tuple(kind for kind in KvType if all(size % kind.ggml.block_elements == 0 for size in kept.head_elements))


def padded(cells: int) -> int:
    """Return the cells that llama.cpp makes of those asked for."""
    return -(-cells // CELL_PADDING) * CELL_PADDING


def _cell_bytes(layer: Layer, kind: GgmlType) -> int:
    return sum(
        elements // kind.block_elements * kind.block_bytes for elements in (layer.key_elements, layer.value_elements)
    )
