"""What this machine has to compute with."""

import os
from pathlib import Path

import psutil


def usable_threads(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many threads decode fastest: the physical cores this process may use, at most its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, _quota_cores(cgroup_root) or allowed))


def _quota_cores(cgroup_root: Path) -> int | None:
    """Return whole cores of the cgroup v2 quota, or None where there is no quota.

    `cpu.max` holds "QUOTA PERIOD" in microseconds, or "max PERIOD" (kernel documentation, Control Group v2).
    """
    try:
        quota, period = (cgroup_root / "cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None
