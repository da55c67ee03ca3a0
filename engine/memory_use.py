"""How much memory this process takes, and how much there is to take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


class _Version(NamedTuple):
    """Where a version of Linux' control groups has its files, below the folder of all groups, and how they are called."""

    folder: str
    limit: str
    used: str
    reclaimable: str


_V1: Final = _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = _Version("", "memory.max", "memory.current", "inactive_file")


def resident_bytes() -> int:
    import psutil  # noqa: PLC0415  takes 10 ms, which a model's load need not wait for

    return int(psutil.Process().memory_info().rss)


def available_bytes(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return what may still be taken without swapping: the machine's, or less where a control group has a limit."""
    import psutil  # noqa: PLC0415  as above

    return min((int(psutil.virtual_memory().available), *_left_in_groups(groups, own_groups)))


def _left_in_groups(groups: Path, own_groups: Path) -> Iterator[int]:
    """Yield what is left to each group that this process is in and that has a limit. Elsewhere than on Linux there are none."""
    try:
        memberships = own_groups.read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            version = _V1 if controllers else _V2
            own = Path(path.lstrip("/"))
            for group in (own, *own.parents):
                yield from _left_in(groups / version.folder / group, version)


def _left_in(group: Path, version: _Version) -> Iterator[int]:
    """Yield what is left to a group, if it has a limit and can be seen: in a container, those above often cannot."""
    try:
        limit, used = (int((group / name).read_text()) for name in (version.limit, version.used))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield max(0, limit - used + int(counts[version.reclaimable]))
    except (OSError, ValueError, KeyError):  # the second: "max" is none
        return
