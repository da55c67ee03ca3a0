"""What this machine has for models, put together: memory and cores from the system, GPUs from llama.cpp."""

import contextlib
import dataclasses
import importlib.util
import platform
import re
import sys
from pathlib import Path

from pinyon.app.machine_speed import stored_speed
from pinyon.app.settings import Folders, Settings
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.device_probe import probe_devices
from pinyon.engine.errors import EngineError
from pinyon.models.machine.cores import Cores, read_cores
from pinyon.models.machine.devices import Devices, Gpu
from pinyon.models.machine.ram import read_ram


def this_machine(folders: Folders, settings: Settings) -> Devices:
    """Return what there is now. Takes half a second, more with drivers to start; where they fail, `gpu_fault` says so."""
    ram, cores = read_ram(), chosen_cores(settings)
    speed = stored_speed(folders, cores.threads)
    bandwidth = None if speed is None else speed.memory_bytes_per_s
    try:
        found = probe_devices()
    except EngineError as error:
        return Devices(
            ram,
            cores,
            (),
            gpus_from="llama.cpp could not be asked",
            build="",
            gpu_fault=str(error),
            bandwidth_bytes_per_s=bandwidth,
        )
    gpus = tuple(_gpu(device) for device in found.devices if device.kind.is_gpu)
    return Devices(
        ram, cores, gpus, gpus_from="llama.cpp, as it was built", build=found.build, bandwidth_bytes_per_s=bandwidth
    )


def gpus_here() -> tuple[Gpu, ...]:
    """Return the GPUs that models can use now; none where llama.cpp was built without, which takes no time to find out.

    Else half a second: a driver has to start. One that fails leaves the GPUs unused.
    """
    if not has_gpu_backends():
        return ()
    with contextlib.suppress(EngineError):
        return tuple(_gpu(device) for device in probe_devices().devices if device.kind.is_gpu)
    return ()


def has_gpu_backends() -> bool:
    """Whether libraries for GPUs lie beside llama.cpp, without loading it."""
    found = importlib.util.find_spec("llama_cpp")
    folders = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    names = (file.name for folder in folders for file in (folder / "lib").glob("*ggml-*"))
    return any(not re.match(r"(lib)?ggml-(base|cpu)", name) for name in names)


def chosen_cores(settings: Settings) -> Cores:
    """Return the cores, and how many threads compute: the setting's, else what suits them."""
    cores = read_cores()
    if settings.threads is None:
        return cores
    return dataclasses.replace(cores, threads=settings.threads, threads_from="the setting threads")


def _gpu(device: Device) -> Gpu:
    # Metal calls all its devices GPUs, and those of Apple's own chips have no memory of their own.
    is_apple_chip = sys.platform == "darwin" and platform.machine() == "arm64"
    shares_ram = is_apple_chip or device.kind is DeviceKind.INTEGRATED_GPU
    return Gpu(device.name, device.description, device.free_bytes, device.total_bytes, shares_ram)
