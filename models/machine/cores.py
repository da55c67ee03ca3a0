"""Which cores this process may use, and how many threads compute fastest on them."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from pinyon.models.machine.control_groups import ControlGroup, ControlGroups


@dataclass(frozen=True, slots=True)
class Cores:
    """The machine has `physical` cores, which count as `logical` ones where a core runs two threads.

    Open to this process are `allowed` logical ones, on `usable` physical ones, of which `efficiency` are much slower than the
    others. `quota` is how many cores' time it gets at most, None for all of it. `threads` is how many threads to compute with.
    """

    physical: int
    logical: int
    cores_from: str
    allowed: int
    usable: int
    usable_from: str
    efficiency: int
    efficiency_from: str
    quota: float | None
    quota_from: str
    threads: int
    threads_from: str


_ALL_GROUPS: Final = ControlGroups()
_DEVICES: Final = Path("/sys/devices")
_SLOW: Final = 0.6
"""A core with less than this share of the fastest one's speed counts as an efficiency core.

Arm's small cores have 0.25 to 0.55 of their large ones, its middle ones and the dense ones of AMD 0.65 and more.
"""


def _mac_figure(name: str) -> int | None:
    """Return a number that macOS' kernel tells by name; None elsewhere, or where it has no such number."""
    if sys.platform == "darwin":
        command = ("/usr/sbin/sysctl", "-n", name)
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return int(told) if told.isdigit() else None
    return None


def read_cores(
    groups: ControlGroups = _ALL_GROUPS,
    devices: Path = _DEVICES,
    mask: Collection[int] | None = None,
    mac_figure: Callable[[str], int | None] = _mac_figure,
) -> Cores:
    """Return what there is; `mask` holds the logical cores that this process may use, None asks the system."""
    allowed = frozenset(_own_mask() if mask is None else mask)
    cores = {(_siblings(cpu, devices) & allowed) | {cpu} for cpu in allowed}
    physical = psutil.cpu_count(logical=False) or len(cores)
    usable = min(len(cores), physical)  # where the system does not tell which cores are siblings, there are too many
    efficiency, efficiency_from = _efficiency(cores, usable, devices, mac_figure)
    quota, quota_from = _tightest_quota(groups)
    threads, threads_from = _threads(usable, efficiency, quota)
    return Cores(
        physical=physical,
        logical=os.cpu_count() or len(allowed),
        cores_from="the operating system",
        allowed=len(allowed),
        usable=usable,
        usable_from="the affinity mask of this process" + (", siblings counted once" if usable < len(allowed) else ""),
        efficiency=efficiency,
        efficiency_from=efficiency_from,
        quota=quota,
        quota_from=quota_from,
        threads=threads,
        threads_from=threads_from,
    )


def _own_mask() -> Collection[int]:
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # macOS has no masks
        return process.cpu_affinity()
    return range(os.cpu_count() or 1)


def _threads(usable: int, efficiency: int, quota: float | None) -> tuple[int, str]:
    """Two threads of one core compute no faster than one, and all wait for the slowest."""
    threads, reason = usable, "one for each physical core that this process may use"
    if 0 < efficiency < usable:
        threads, reason = usable - efficiency, f"{reason} and that is no efficiency core"
    if quota is not None and quota < threads:
        return max(1, int(quota)), "the quota's whole cores" if quota >= 1 else "the quota is less than a core"
    return threads, reason


def _siblings(cpu: int, devices: Path) -> frozenset[int]:
    """Return the logical cores that are one physical core with this one; none where Linux does not say."""
    topology = devices / "system" / "cpu" / f"cpu{cpu}" / "topology"
    return _cpus_in(topology / "core_cpus_list") or _cpus_in(topology / "thread_siblings_list")


def _cpus_in(file: Path) -> frozenset[int]:
    """Return what a list such as "0-3,8" holds; nothing where the file is not there or is no such list."""
    try:
        spans = [[int(end) for end in part.split("-")] for part in file.read_text().split(",")]
    except (OSError, ValueError):
        return frozenset()
    return frozenset(cpu for span in spans for cpu in range(span[0], span[-1] + 1))


def _efficiency(
    cores: Collection[frozenset[int]], usable: int, devices: Path, mac_figure: Callable[[str], int | None]
) -> tuple[int, str]:
    fast = mac_figure("hw.perflevel0.physicalcpu")
    if fast is not None:
        return max(0, usable - fast), "hw.perflevel0.physicalcpu of macOS"
    slow, source = _slow_cpus(frozenset[int]().union(*cores), devices)
    return sum(core <= slow for core in cores), source


def _slow_cpus(allowed: frozenset[int], devices: Path) -> tuple[frozenset[int], str]:
    """Return the logical cores that are much slower than others: Intel's are listed, others' known by their speed."""
    small = _cpus_in(devices / "cpu_atom" / "cpus")
    if small:
        return small & allowed, f"{devices}/cpu_atom"
    for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: _speed(devices / "system" / "cpu" / f"cpu{cpu}" / file) for cpu in allowed}
        if all(speeds.values()):
            fastest = max(speeds.values())
            return frozenset(cpu for cpu in allowed if speeds[cpu] < _SLOW * fastest), f"{file} of each core"
    return frozenset(), "the operating system does not tell the cores' speeds"


def _speed(file: Path) -> int:
    """Return the number in a file; 0 where it is not there or holds none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def _tightest_quota(groups: ControlGroups) -> tuple[float | None, str]:
    quotas = [
        (quota, f"the CPU quota of the control group {group.name}")
        for group in groups.of("cpu")
        if (quota := _quota(group)) is not None
    ]
    return min(quotas, default=(None, "no control group of this process has one"))


def _quota(group: ControlGroup) -> float | None:
    """Return a group's microseconds of computing in a period, over the period's."""
    if group.is_v1:
        quota, period = group.number("cpu.cfs_quota_us"), group.number("cpu.cfs_period_us")
    else:
        quota, period = [*group.numbers("cpu.max"), None, None][:2]
    return quota / period if quota is not None and period else None
