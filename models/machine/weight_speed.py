"""What a weight of each type costs on this machine, as it was measured, and the file that keeps it.

Another build of llama.cpp, number of threads or CPU has costs of its own, so the file says whose they are.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from pinyon.models.disk import private_folder, write_atomically
from pinyon.models.ggml_types import TYPES_BY_NAME

ROWS: Final = (1, 4, 8, 16, 64)
"""How many rows the measured steps have: decoding for one client, a few and more, and pieces of prompts."""

WEIGHT_TYPES: Final = tuple(
    "Q4_0 Q4_K Q6_K Q8_0 F16 BF16 F32 Q5_K Q5_0 Q5_1 Q4_1 IQ4_NL IQ4_XS Q3_K Q2_K IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_S "
    "IQ1_M MXFP4 TQ2_0".split()
)
"""The types that are measured: those in which models are published, common ones first."""


_USUAL_WIDTH: Final = 1000


class Computer(msgspec.Struct, frozen=True):
    """What computes: a build of llama.cpp, with so many threads, on a CPU."""

    build: str
    threads: int
    cpu: str


class WeightSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step at each of ROWS: `weight_s` for one weight, by type; `layer_s` for a layer, whatever its weights, and
    `width_s` more for each value of its width (the embedding length).
    """

    computer: Computer
    rows: tuple[int, ...]
    layer_s: tuple[float, ...]
    width_s: tuple[float, ...]
    weight_s: Mapping[str, tuple[float, ...]]

    @property
    def is_sound(self) -> bool:
        """Whether a machine could have these costs: files may be damaged or another version's, and other programs make a few rows
        look dearer than many.
        """
        layers = (self.layer_s, self.width_s)
        return (
            self.rows == ROWS
            and 0 < len(self.weight_s) == len(self.weight_s.keys() & TYPES_BY_NAME.keys())
            and all(len(costs) == len(ROWS) for costs in (*layers, *self.weight_s.values()))
            and all(0 <= cost < math.inf for costs in layers for cost in costs)
            and all(0 < cost < math.inf for costs in self.weight_s.values() for cost in costs)
            and all(
                more >= few / 2
                for costs in (*self.weight_s.values(), self._usual_layer_s)
                for few, more in pairwise(costs)
            )
        )

    @property
    def _usual_layer_s(self) -> list[float]:
        return [layer_s + _USUAL_WIDTH * width_s for layer_s, width_s in zip(self.layer_s, self.width_s, strict=True)]

    @property
    def memory_bytes_per_s(self) -> float:
        """How fast weights are read for a step of one row: the most that any type reaches, which is the memory's bandwidth."""
        return max(TYPES_BY_NAME[name].bits / 8 / costs[0] for name, costs in self.weight_s.items())


def read_speed(file: Path, computer: Computer) -> WeightSpeed | None:
    """Return what was measured for this computer; None where nothing was, or the file cannot be used."""
    try:
        speed = msgspec.json.decode(file.read_bytes(), type=WeightSpeed)
    except (OSError, msgspec.DecodeError):
        return None
    return speed if speed.computer == computer and speed.is_sound else None


def write_speed(file: Path, speed: WeightSpeed) -> None:
    """Keep what was measured, in the place of what was there. Raises OSError."""
    private_folder(file.parent)
    write_atomically(file, msgspec.json.encode(speed))
