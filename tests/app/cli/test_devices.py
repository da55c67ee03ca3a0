"""`pinyon devices`: a line a figure, with where it comes from; JSON of a known shape; exit code 1 where GPUs are not known."""

import dataclasses
import json

import msgspec
import pytest
from click.testing import CliRunner
from command_line import assert_refused, pinyon

from pinyon.app import devices as app_devices
from pinyon.app import machine_speed
from pinyon.app.cli import devices as command_line
from pinyon.app.cli.devices import command
from pinyon.app.cli.failures import ExitCode
from pinyon.models.machine.cores import Cores
from pinyon.models.machine.devices import Devices, Gpu
from pinyon.models.machine.ram import Ram

GIB = 1 << 30
RAM = Ram(16 * GIB, "system", 8 * GIB, "memory.max of /a", int(5.5 * GIB), "memory.max of /a, less")
CORES = Cores(8, 16, "system", 12, 6, "mask", 2, "speeds", 2.5, "quota of /a", 2, "whole cores")
GPUS = (
    Gpu("CUDA0", "A large GPU", 20 * GIB, 24 * GIB, shares_ram=False),
    Gpu("MTL0", "A\x1b[2J\nchip", 3 * GIB, 4 * GIB, shares_ram=True),
)
MACHINE = Devices(RAM, CORES, GPUS, "llama.cpp", "a build")
SHAPE = {
    "ram": {"total_bytes", "total_from", "limit_bytes", "limit_from", "available_bytes", "available_from"},
    "cores": {
        "physical", "logical", "cores_from", "allowed", "usable", "usable_from", "efficiency", "efficiency_from",
        "quota", "quota_from", "threads", "threads_from",
    },
    "gpu": {"name", "description", "free_bytes", "total_bytes", "shares_ram"},
}  # fmt: skip


@pytest.fixture
def shown(monkeypatch):
    """Return the exit code and what is printed of a machine."""
    monkeypatch.setattr(command_line, "load_settings", lambda _folders: None)

    def run(machine, *options):
        monkeypatch.setattr(app_devices, "this_machine", lambda _folders, _settings: machine)
        ran = CliRunner().invoke(command, options, standalone_mode=False, catch_exceptions=False)
        return ran.return_value, ran.stdout, ran.stderr

    return run


def rows(text):
    """The lines by their first word, each with its value and its source."""
    return {name: " ".join(rest) for name, *rest in (line.split() for line in text.splitlines())}


def test_each_figure_says_where_it_comes_from(shown):
    code, out, err = shown(MACHINE)
    assert (code, err) == (ExitCode.OK, "")
    assert rows(out) == {
        "memory": "16.0 GiB system",
        "limit": "8.0 GiB memory.max of /a",
        "available": "5.5 GiB memory.max of /a, less",
        "cores": "8 physical, 16 logical system",
        "usable": "6 physical, 12 logical mask",
        "slow": "2 of these speeds",
        "quota": "2.5 cores quota of /a",
        "threads": "2 whole cores",
        "gpu": "MTL0: 3.0 GiB of 4.0 GiB free, of the machine's memory (A\\x1b[2J\\nchip) llama.cpp",
        "build": "a build llama.cpp",
    }
    assert "gpu        CUDA0: 20.0 GiB of 24.0 GiB free (A large GPU)" in out


def test_what_is_not_there_is_said_to_be_none(shown):
    ram = Ram(GIB, "system", None, "no group", GIB, "system")
    cores = Cores(1, 1, "system", 1, 1, "mask", 0, "speeds", None, "no group", 1, "one")
    found = rows(shown(Devices(ram, cores, (), "llama.cpp", "a build"))[1])
    assert (found["limit"], found["slow"], found["quota"], found["gpu"]) == (
        "none no group", "none speeds", "none no group", "none llama.cpp",
    )  # fmt: skip


def test_bandwidth_is_shown_where_it_was_measured(shown):
    assert "bandwidth" not in shown(MACHINE)[1]
    measured = Devices(RAM, CORES, (), "llama.cpp", "a build", bandwidth_bytes_per_s=41.23e9)
    assert rows(shown(measured)[1])["bandwidth"] == "41.2 GB/s measured here"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_gpus_that_are_not_known_end_with_code_1_and_the_reason(shown, options):
    code, out, err = shown(Devices(RAM, CORES, (), "not asked", "", gpu_fault="a driver hangs"), *options)
    assert code is ExitCode.FAILED
    assert err == "pinyon: the GPUs are not known: a driver hangs\n"
    if options:
        assert json.loads(out)["gpu_fault"] == "a driver hangs"
    else:
        assert rows(out)["gpu"] == "unknown not asked"
        assert "build" not in rows(out)


def test_json_is_the_whole_value(shown):
    code, out, _ = shown(MACHINE, "--json")
    assert code is ExitCode.OK
    assert out.count("\n") == 1
    assert msgspec.json.decode(out, type=Devices) == MACHINE


def test_this_machine_as_a_user_sees_it(tmp_path):
    done = pinyon(tmp_path, "devices", "--json", PINYON_THREADS="3")
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert (found["ram"].keys(), found["cores"].keys()) == (SHAPE["ram"], SHAPE["cores"])
    assert found.keys() == {"ram", "cores", "gpus", "gpus_from", "build", "gpu_fault", "bandwidth_bytes_per_s"}
    assert all(gpu.keys() == SHAPE["gpu"] for gpu in found["gpus"])
    assert (found["cores"]["threads"], found["cores"]["threads_from"]) == (3, "the setting threads")
    assert "llama.cpp" in found["build"]
    assert not [*tmp_path.iterdir()], "nothing is written"


def test_a_setting_that_is_wrong_is_told_as_everywhere(tmp_path):
    assert_refused(pinyon(tmp_path, "devices", PINYON_THREADS="0"), ExitCode.USAGE, "threads")
    assert_refused(pinyon(tmp_path, "devices", "more"), ExitCode.USAGE, "more")


def test_measuring_comes_first(shown, monkeypatch):
    told = []

    async def measure(_folders, threads, on_progress):
        told.append(threads)
        on_progress(1.0)

    monkeypatch.setattr(machine_speed, "measure_speed", measure)
    monkeypatch.setattr(app_devices, "chosen_cores", lambda _settings: CORES)
    code, out, _ = shown(dataclasses.replace(MACHINE, bandwidth_bytes_per_s=21.5e9), "--measure")
    assert (code, told) == (ExitCode.OK, [CORES.threads])
    assert rows(out)["bandwidth"] == "21.5 GB/s measured here"
