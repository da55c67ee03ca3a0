"""`pinyon devices`: what this machine has for models, and where each figure comes from."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import click

from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.terminal import print_json, tell
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.models.disk import printable

if TYPE_CHECKING:
    from pinyon.models.machine.devices import Devices, Gpu


@click.command(name="devices")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure", is_flag=True, help="First measure what weights of each type cost here; takes some 15 s.")
def command(as_json: bool, measure: bool) -> ExitCode:
    """Show the memory, cores and GPUs that models can have here, and where each figure comes from.

    With --measure speeds are known from then on: `pinyon fit` and the chat's model picker predict them.
    """
    from pinyon.app.devices import this_machine  # noqa: PLC0415  what it imports takes 0.1 s

    folders = Folders.of_user()
    settings = load_settings(folders)
    if measure:
        _measure(folders, settings)
    devices = this_machine(folders, settings)
    if as_json:
        print_json(devices)
    else:
        _print_table(_rows(devices))
    if devices.gpu_fault:
        tell(f"the GPUs are not known: {devices.gpu_fault}")
        return ExitCode.FAILED
    return ExitCode.OK


def _measure(folders: Folders, settings: Settings) -> None:
    from pinyon.app.cli.progress import loading  # noqa: PLC0415
    from pinyon.app.devices import chosen_cores  # noqa: PLC0415
    from pinyon.app.machine_speed import measure_speed  # noqa: PLC0415

    with loading("what weights cost", "measuring") as on_progress:
        asyncio.run(measure_speed(folders, chosen_cores(settings).threads, on_progress))


class _Row(NamedTuple):
    name: str
    value: str
    source: str


def _print_table(rows: list[_Row]) -> None:
    width = max(len(row.value) for row in rows)
    for row in rows:
        print(printable(f"{row.name:<9}  {row.value:<{width}}  {row.source}"))


def _rows(devices: "Devices") -> list[_Row]:
    ram, cores, speed = devices.ram, devices.cores, devices.bandwidth_bytes_per_s
    return [
        _Row("memory", _gib(ram.total_bytes), ram.total_from),
        _Row("limit", "none" if ram.limit_bytes is None else _gib(ram.limit_bytes), ram.limit_from),
        _Row("available", _gib(ram.available_bytes), ram.available_from),
        *([] if speed is None else [_Row("bandwidth", f"{speed / 1e9:.1f} GB/s", "measured here")]),
        _Row("cores", f"{cores.physical} physical, {cores.logical} logical", cores.cores_from),
        _Row("usable", f"{cores.usable} physical, {cores.allowed} logical", cores.usable_from),
        _Row("slow", f"{cores.efficiency} of these" if cores.efficiency else "none", cores.efficiency_from),
        _Row("quota", "none" if cores.quota is None else f"{cores.quota:g} cores", cores.quota_from),
        _Row("threads", str(cores.threads), cores.threads_from),
        *(_Row("gpu", _gpu(gpu), devices.gpus_from) for gpu in devices.gpus),
        *([] if devices.gpus else [_Row("gpu", "unknown" if devices.gpu_fault else "none", devices.gpus_from)]),
        *([_Row("build", devices.build, "llama.cpp")] if devices.build else []),
    ]


def _gpu(gpu: "Gpu") -> str:
    shared = ", of the machine's memory" if gpu.shares_ram else ""
    return f"{gpu.name}: {_gib(gpu.free_bytes)} of {_gib(gpu.total_bytes)} free{shared} ({gpu.description})"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
