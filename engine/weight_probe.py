"""The process that measures what weights of each type cost here: `python -m pinyon.engine.weight_probe`.

It reads a ProbeOrder from standard input and writes a line for the cost of layers, then one for each type and pass. It computes real steps
of real models, which only have no file worth the name (`hollow_model`): so buffers, repacking, threads and devices are those of any
other model. Three models tell weights and layers apart: t = weights x w + layers x (a + b x width), at each number of rows.
"""

import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from pinyon.engine.errors import ModelLoadError
from pinyon.engine.hollow_model import CONTEXT, Shape, write_hollow_model
from pinyon.engine.native import Context, Model, NativeLog, RowBuffer, check_binding
from pinyon.engine.probe_messages import LayerCost, ProbeLine, ProbeOrder, WeightCost, WeightType

Floats: TypeAlias = NDArray[np.float64]

_WIDTH, _FEED_FORWARD = 1024, 4096
_THIN: Final = Shape(64, 128, 128)
_WIDE: Final = Shape(16, 1024, 64)
"""Models of little but layers."""

_CACHES: Final = 2
"""Weights are to take this many times what the largest cache holds, since those of real models come from memory."""
_USUAL_CACHE_BYTES: Final = 32 << 20
_LEAST_BITS: Final = 4
"""With fewer bits a weight, a model has as many weights as with these: such kernels compute for longer than they read."""
_FEW_ROWS: Final = 8
_LAYERS_FOR_MANY: Final = 2
"""With more rows all types compute for longer than they read. Two layers are enough, and leave steps so short that other programs
do not get into each of them.
"""
_MODEL_S: Final = 0.1
"""How long a model is measured in a pass, if one round does not take longer."""


class Probe:
    """Measures models that it writes into `folder`. `weights_bytes` is the size of those that weights are measured with."""

    def __init__(self, order: ProbeOrder, folder: Path, log: NativeLog, weights_bytes: int) -> None:
        self._order = order
        self._file = folder / "hollow.gguf"
        self._log = log
        self._weights_bytes = weights_bytes

    def lines(self) -> Iterator[ProbeLine]:
        """Yield the cost of layers, then in each pass that of each type. Raises EngineError where the reference cannot be loaded."""
        layer = self._layer_cost(self._order.reference)
        yield layer
        for _ in range(self._order.passes):
            for kind in self._order.types:
                yield self._weight_cost(kind, layer)

    def _layer_cost(self, kind: WeightType) -> LayerCost:
        heavy = self._heavy(kind)
        passes = [
            (self._heavy_steps_s(kind), *(self._steps_s(shape, kind, self._order.rows) for shape in (_THIN, _WIDE)))
            for _ in range(self._order.passes)
        ]
        steps_s = np.min(passes, axis=0)
        parts = [[(*_weights(shape), shape.layers * shape.width) for shape in (one, _THIN, _WIDE)] for one in heavy]
        costs = np.linalg.solve(np.array(parts, np.float64), steps_s.T[:, :, None])[:, :, 0]
        _, layer_s, width_s = np.maximum(costs, 0).T.tolist()
        return LayerCost(tuple(layer_s), tuple(width_s))

    def _weight_cost(self, kind: WeightType, layer: LayerCost) -> WeightCost:
        try:
            steps_s = self._heavy_steps_s(kind)
        except ModelLoadError:
            return WeightCost(kind.number, ())
        weights, layers = np.array([_weights(shape) for shape in self._heavy(kind)]).T
        layers_s = layers * (np.array(layer.layer_s) + _WIDTH * np.array(layer.width_s))
        return WeightCost(kind.number, tuple(((steps_s - layers_s) / weights).tolist()))

    def _heavy(self, kind: WeightType) -> list[Shape]:
        """Return a model for each number of rows, for few rows one of as many weights as the caches ask for."""
        bits = max(8 * kind.block_bytes / kind.block_elements, _LEAST_BITS)
        small = Shape(_LAYERS_FOR_MANY, _WIDTH, _FEED_FORWARD)
        large = small._replace(layers=math.ceil(self._weights_bytes / (small.layer_weights * bits / 8)))
        return [large if rows <= _FEW_ROWS else small for rows in self._order.rows]

    def _heavy_steps_s(self, kind: WeightType) -> Floats:
        rows_of: dict[Shape, list[int]] = {}
        for shape, rows in zip(self._heavy(kind), self._order.rows, strict=True):
            rows_of.setdefault(shape, []).append(rows)
        return np.concatenate([self._steps_s(shape, kind, rows) for shape, rows in rows_of.items()])

    def _steps_s(self, shape: Shape, kind: WeightType, rows: Sequence[int]) -> Floats:
        """Return the least seconds of a step of each number of rows. Raises ModelLoadError."""
        write_hollow_model(self._file, shape, kind)
        most = max(rows)
        with (
            closing(Model(self._file, self._log, lambda _fraction: True)) as model,
            closing(
                Context(
                    model,
                    self._log,
                    cells=CONTEXT,
                    sequence_ids=most,  # as many rows may want logits: else the last layer would compute nothing
                    batch_rows=most,
                    threads=self._order.threads,
                )
            ) as context,
        ):
            return _rounds(context, rows)


def _weights(shape: Shape) -> tuple[int, int]:
    """Return how many weights and layers a model has."""
    return shape.layers * shape.layer_weights, shape.layers


def _rounds(context: Context, counts: Sequence[int]) -> Floats:
    least = np.full(len(counts), np.inf)
    buffer = RowBuffer(max(counts))
    buffer.positions[:] = range(buffer.capacity)
    buffer.wants_logits[:] = True
    ends = time.perf_counter() + _MODEL_S
    while np.isinf(least).any() or time.perf_counter() < ends:
        for place, rows in enumerate(counts):
            for _ in range(
                2
            ):  # the second step finds pages in memory and the first one's graph, as steps of decoding do
                seconds = _step_s(context, buffer, rows)
                least[place] = min(least[place], seconds)
                if seconds > _MODEL_S:
                    break
    return least


def _step_s(context: Context, buffer: RowBuffer, rows: int) -> float:
    started = time.perf_counter()
    context.decode(buffer, rows)
    seconds = time.perf_counter() - started
    context.remove_sequence(0)
    return seconds


def cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache, as Linux tells it; a usual one elsewhere."""
    sizes = [0]
    for file in root.glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) << 10)
    return max(sizes) or _USUAL_CACHE_BYTES


def measure() -> None:
    """Answer the order on standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeOrder)
    check_binding()
    with tempfile.TemporaryDirectory(prefix="pinyon-") as folder, Path(os.devnull).open("w") as nowhere:
        for line in Probe(order, Path(folder), NativeLog(nowhere), _CACHES * cache_bytes()).lines():
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    measure()
