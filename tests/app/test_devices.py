"""Memory and cores from the system, GPUs from llama.cpp; where that fails, the rest is there all the same."""

import platform
import sys

import pytest

from pinyon.app import devices
from pinyon.app.devices import chosen_cores, this_machine
from pinyon.app.settings import Folders, Settings
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.device_probe import Found
from pinyon.engine.errors import EngineCrashedError, EngineStartError, EngineStuckError
from pinyon.models.machine.cores import read_cores
from pinyon.models.machine.devices import Gpu

FOLDERS = Folders.of_user({"PINYON_HOME": "/nowhere"})
ALL = (
    Device("CPU", "a processor", DeviceKind.CPU, 5, 6),
    Device("CUDA0", "large", DeviceKind.GPU, 20, 24),
    Device("BLAS", "a library", DeviceKind.ACCELERATOR, 0, 0),
    Device("Vulkan0", "small", DeviceKind.INTEGRATED_GPU, 3, 4),
)


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setattr(devices, "probe_devices", lambda: Found("a build", ALL))


@pytest.fixture
def system(monkeypatch):
    def pretend(name, machine):
        monkeypatch.setattr(sys, "platform", name)
        monkeypatch.setattr(platform, "machine", lambda: machine)

    return pretend


def test_gpus_are_those_of_llama_cpp(found, system):
    system("linux", "x86_64")
    machine = this_machine(FOLDERS, Settings())
    assert machine.gpus == (
        Gpu("CUDA0", "large", 20, 24, shares_ram=False),
        Gpu("Vulkan0", "small", 3, 4, shares_ram=True),
    )
    assert (machine.build, machine.gpu_fault) == ("a build", "")


@pytest.mark.parametrize(
    ("name", "machine", "shared"),
    [("darwin", "arm64", True), ("darwin", "x86_64", False), ("linux", "arm64", False)],
)
def test_a_gpu_of_an_apple_chip_has_no_memory_of_its_own(found, system, name, machine, shared):
    system(name, machine)
    assert this_machine(FOLDERS, Settings()).gpus[0].shares_ram is shared


@pytest.mark.parametrize(
    "error", [EngineCrashedError("died"), EngineStuckError("hung"), EngineStartError("no process")]
)
def test_a_probe_that_fails_is_told_and_the_rest_is_known(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(devices, "probe_devices", fail)
    machine = this_machine(FOLDERS, Settings())
    assert (machine.gpus, machine.build, machine.gpu_fault) == ((), "", str(error))
    assert machine.ram.available_bytes > 0
    assert machine.cores.threads >= 1


def test_bandwidth_is_what_was_measured(found, monkeypatch):
    measured = type("Measured", (), {"memory_bytes_per_s": 5e9})
    monkeypatch.setattr(devices, "stored_speed", lambda folders, threads: measured if threads == 3 else None)
    assert this_machine(FOLDERS, Settings(threads=3)).bandwidth_bytes_per_s == 5e9
    assert this_machine(FOLDERS, Settings(threads=4)).bandwidth_bytes_per_s is None


def test_gpus_are_asked_for_only_where_there_can_be_any(found, monkeypatch):
    monkeypatch.setattr(devices, "may_have_gpus", lambda: False)
    assert devices.gpus_here() == ()
    monkeypatch.setattr(devices, "may_have_gpus", lambda: True)
    assert [gpu.name for gpu in devices.gpus_here()] == ["CUDA0", "Vulkan0"]


def test_the_setting_decides_how_many_threads_compute():
    assert chosen_cores(Settings()) == read_cores()
    chosen = chosen_cores(Settings(threads=77))
    assert (chosen.threads, chosen.threads_from) == (77, "the setting threads")
