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
from collections.abc import Iterator
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
_MODEL_S: Final = 0.25
"""How long in a pass, if one round does not take longer."""


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
        shapes = (self._heavy(kind), _THIN, _WIDE)
        passes = [[self._steps_s(shape, kind) for shape in shapes] for _ in range(self._order.passes)]
        steps_s = np.min(passes, axis=0)
        parts = [(shape.layers * shape.layer_weights, shape.layers, shape.layers * shape.width) for shape in shapes]
        _, layer_s, width_s = np.linalg.solve(np.array(parts, np.float64), steps_s)
        return LayerCost(tuple(np.maximum(layer_s, 0).tolist()), tuple(np.maximum(width_s, 0).tolist()))

    def _weight_cost(self, kind: WeightType, layer: LayerCost) -> WeightCost:
        shape = self._heavy(kind)
        try:
            steps_s = self._steps_s(shape, kind)
        except ModelLoadError:
            return WeightCost(kind.number, ())
        layers_s = shape.layers * (np.array(layer.layer_s) + shape.width * np.array(layer.width_s))
        weight_s = (steps_s - layers_s) / (shape.layers * shape.layer_weights)
        return WeightCost(kind.number, tuple(weight_s.tolist()))

    def _heavy(self, kind: WeightType) -> Shape:
        """Return a model of as many weights as caches ask for."""
        bits = max(8 * kind.block_bytes / kind.block_elements, _LEAST_BITS)
        layer_bytes = Shape(1, _WIDTH, _FEED_FORWARD).layer_weights * bits / 8
        return Shape(math.ceil(self._weights_bytes / layer_bytes), _WIDTH, _FEED_FORWARD)

    def _steps_s(self, shape: Shape, kind: WeightType) -> Floats:
        """Return the least seconds of a step of each number of rows. Raises ModelLoadError."""
        write_hollow_model(self._file, shape, kind)
        most = max(self._order.rows)
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
            return self._rounds(context)

    def _rounds(self, context: Context) -> Floats:
        least = np.full(len(self._order.rows), np.inf)
        buffer = RowBuffer(max(self._order.rows))
        buffer.positions[:] = range(buffer.capacity)
        buffer.wants_logits[:] = True
        ends = time.perf_counter() + _MODEL_S
        while np.isinf(least).any() or time.perf_counter() < ends:
            for place, rows in enumerate(self._order.rows):
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
