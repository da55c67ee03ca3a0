"""How much memory this machine has, and how much of it a model could take."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import psutil

from pinyon.models.machine.control_groups import ControlGroup, ControlGroups


@dataclass(frozen=True, slots=True)
class Ram:
    """`limit_bytes` is the lowest limit that a control group sets below `total_bytes`, None without one.

    `available_bytes` can be taken without swapping: what other programs use is off, file cache that can be given back is
    not, and no control group's limit would be passed. Weights that another process has mapped are such cache to the kernel.
    """

    total_bytes: int
    total_from: str
    limit_bytes: int | None
    limit_from: str
    available_bytes: int
    available_from: str


class _Version(NamedTuple):
    """How the files of a version of control groups are called, and which counts of memory.stat can be given back."""

    limits: tuple[str, ...]
    used: str
    reclaimable: tuple[str, ...]


# Above memory.high programs are slowed down until they are below it.
_V2: Final = _Version(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
)
_V1: Final = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))

_ALL_GROUPS: Final = ControlGroups()


class _Cap(NamedTuple):
    limit_bytes: int
    left_bytes: int
    source: str


def read_ram(groups: ControlGroups = _ALL_GROUPS) -> Ram:
    """Return what there is now."""
    machine = psutil.virtual_memory()
    # Version 1 writes a huge number where there is no limit.
    caps = [cap for group in groups.of("memory") for cap in _caps(group) if cap.limit_bytes < machine.total]
    available_bytes, available_from = machine.available, "the operating system: free, or cache that can be given back"
    limit_bytes, limit_from = None, "no control group of this process has one"
    if caps:
        lowest = min(caps, key=lambda cap: cap.limit_bytes)
        limit_bytes, limit_from = lowest.limit_bytes, lowest.source
        scarcest = min(caps, key=lambda cap: cap.left_bytes)
        if scarcest.left_bytes < available_bytes:
            available_bytes = scarcest.left_bytes
            available_from = f"{scarcest.source}, less what is used, file cache not counted"
    return Ram(machine.total, "the operating system", limit_bytes, limit_from, available_bytes, available_from)


def _caps(group: ControlGroup) -> Iterator[_Cap]:
    version = _V1 if group.is_v1 else _V2
    counts = group.counts("memory.stat")
    reclaimable_bytes = sum(counts.get(name, 0) for name in version.reclaimable)
    kept_bytes = max(0, (group.number(version.used) or 0) - reclaimable_bytes)
    for file in version.limits:
        limit_bytes = group.number(file)
        if limit_bytes is not None:
            yield _Cap(limit_bytes, max(0, limit_bytes - kept_bytes), f"{file} of the control group {group.name}")
