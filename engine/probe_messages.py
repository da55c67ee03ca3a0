"""What the process that measures weight types is asked, and what it says: one JSON document on its standard input, one a line back."""

from typing import TypeAlias

import msgspec


class WeightType(msgspec.Struct, frozen=True):
    """A tensor type by its number in ggml.h; `block_elements` elements of a row take `block_bytes` bytes."""

    number: int
    block_elements: int
    block_bytes: int


class ProbeOrder(msgspec.Struct, frozen=True):
    """Measure steps of so many `rows` with each of `types`; `reference` is the one that the cost of layers is found with.

    All of it is done `passes` times, since other programs come and go.
    """

    threads: int
    rows: tuple[int, ...]
    passes: int
    reference: WeightType
    types: tuple[WeightType, ...]


class LayerCost(msgspec.Struct, frozen=True, tag="layer"):
    """Seconds of a step, at each number of rows, that no weight explains: for a layer, and for each value of its width."""

    layer_s: tuple[float, ...]
    width_s: tuple[float, ...]


class WeightCost(msgspec.Struct, frozen=True, tag="weight"):
    """Seconds of a step in one pass, at each number of rows, for a weight of a type; none where the build cannot load that."""

    number: int
    weight_s: tuple[float, ...]


ProbeLine: TypeAlias = LayerCost | WeightCost
