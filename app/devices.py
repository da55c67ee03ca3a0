"""What this machine has for models, put together: memory and cores from the system, GPUs from llama.cpp."""

import dataclasses
import platform
import sys

from pinyon.app.machine_speed import stored_speed
from pinyon.app.settings import Folders, Settings
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.device_probe import may_have_gpus, probe_devices
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
    """Return the GPUs with what is free on them now; where the drivers fail, none. Takes half a second where llama.cpp was built for GPUs."""
    if not may_have_gpus():
        return ()
    try:
        return tuple(_gpu(device) for device in probe_devices().devices if device.kind.is_gpu)
    except EngineError:
        return ()


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
