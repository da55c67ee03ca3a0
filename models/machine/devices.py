"""All that this machine has for models, in one value."""

from dataclasses import dataclass

from pinyon.models.machine.cores import Cores
from pinyon.models.machine.ram import Ram


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that llama.cpp can use, with what all programs together leave free on it.

    One that `shares_ram` has no memory of its own: what it takes is taken from the machine's.
    """

    name: str
    description: str
    free_bytes: int
    total_bytes: int
    shares_ram: bool


@dataclass(frozen=True, slots=True)
class Devices:
    """`build` names the llama.cpp that is installed here. Where it could not be asked, `gpu_fault` says why: then there may be
    GPUs, and `build` is empty. `bandwidth_bytes_per_s` is how fast memory was read here, None as long as it was not measured.
    """

    ram: Ram
    cores: Cores
    gpus: tuple[Gpu, ...]
    gpus_from: str
    build: str
    gpu_fault: str = ""
    bandwidth_bytes_per_s: float | None = None
