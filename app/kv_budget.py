"""How much memory and disk the KV of earlier prompts may take, and whether this process may use the disk for it at all."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from pinyon.app.errors import FolderInUseError
from pinyon.app.kv_files import held
from pinyon.app.settings import Folders, Settings
from pinyon.engine.kv_folder import size_bytes
from pinyon.models.disk import printable, private_folder
from pinyon.models.machine.ram import read_ram

MIB: Final = 1 << 20
MAX_DISK_BYTES: Final = 10 << 30
DISK_SHARE: Final = 0.1
"""Of what is free, or would be without what is kept there."""
RAM_SHARE: Final = 0.25
"""Of what is available."""
FULL_SHARE: Final = 0.05
"""A file system with less than this free is left alone."""


LEAST_RAM_BYTES: Final = 64 * MIB
"""A model leaves at least so much to the KV of earlier prompts: what goes to disk waits there."""


class KvBudget(NamedTuple):
    """Caps in bytes, of all models together. Without a `folder` nothing is kept on disk, and `why_no_disk` says why.

    Each of the models in memory is granted an equal part of them. Unless a setting `is_asked` for, the cap of RAM gives way to what models need.
    """

    ram_cap_bytes: int
    disk_cap_bytes: int = 0
    folder: Path | None = None
    why_no_disk: str = ""
    is_asked: bool = False

    def reserved_bytes(self, granted: Sequence[int]) -> int:
        """Return how much RAM is set aside before it is chosen how the next model is loaded; `granted` have those before."""
        most = _next_part(self.ram_cap_bytes, granted)
        return most if self.is_asked else min(most, LEAST_RAM_BYTES)

    def granted_ram(self, granted: Sequence[int], left_bytes: int) -> int:
        """Return the next model's cap of RAM where it leaves so many bytes."""
        most = _next_part(self.ram_cap_bytes, granted)
        return max(self.reserved_bytes(granted), min(most, left_bytes))

    def shared(self, granted: Sequence[int]) -> list[int]:
        """Return what those who are `granted` RAM keep of it once there is one more."""
        part = self.ram_cap_bytes // (len(granted) + 1)
        return [min(part, each) for each in granted]

    def granted_disk(self, granted: Sequence[int]) -> int:
        """Return the next model's cap of disk."""
        return _next_part(self.disk_cap_bytes, granted)


def _next_part(cap_bytes: int, granted: Sequence[int]) -> int:
    """Return an equal part for one more; less where those before have not given up enough."""
    return max(0, min(cap_bytes // (len(granted) + 1), cap_bytes - sum(granted)))


def kv_budget(folders: Folders, settings: Settings) -> KvBudget:
    """Return what the settings and the machine allow now."""
    ram = ram_budget(settings)
    try:
        private_folder(folders.kv)
        return ram._replace(disk_cap_bytes=_disk_cap_bytes(folders.kv, settings), folder=folders.kv)
    except _NoDiskError as error:
        return ram._replace(why_no_disk=str(error))
    except OSError as error:
        return ram._replace(why_no_disk=f"{printable(folders.kv)} cannot be used: {error.strerror}")


def ram_budget(settings: Settings) -> KvBudget:
    """Return what the settings and the machine allow now of RAM."""
    asked = settings.cache_ram_mib
    ram_cap_bytes = int(read_ram().available_bytes * RAM_SHARE) if asked is None else asked * MIB
    return KvBudget(ram_cap_bytes, is_asked=asked is not None)


def _disk_cap_bytes(folder: Path, settings: Settings) -> int:
    asked_mib = settings.cache_disk_mib
    if settings.cache_ram_mib == 0:
        raise _NoDiskError("the setting cache_ram_mib is 0, and what goes to disk waits in memory for that")
    if asked_mib == 0:
        raise _NoDiskError("the setting cache_disk_mib is 0")
    if asked_mib is not None:
        return asked_mib * MIB
    usage = psutil.disk_usage(str(folder))
    if usage.free < usage.total * FULL_SHARE:
        raise _NoDiskError(f"the disk of {printable(folder)} is nearly full: {usage.free // MIB:,} MiB are free")
    if _is_removable(folder):
        raise _NoDiskError(f"{printable(folder)} is on a removable disk")
    kept_bytes = sum(map(size_bytes, folder.glob("*/")))
    return min(MAX_DISK_BYTES, int((usage.free + kept_bytes) * DISK_SHARE))


class KvClaim:
    """The right to use the folder of KV: one process at a time has it."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self.is_held = False

    def claimed(self, budget: KvBudget) -> KvBudget:
        """Return the budget, without its folder if another process uses that, or it cannot be locked."""
        if budget.folder is None or self.is_held:
            return budget
        try:
            self._held.enter_context(held(budget.folder))
        except FolderInUseError as error:
            return _without_disk(budget, str(error))
        except OSError as error:
            return _without_disk(budget, f"{printable(budget.folder)} cannot be locked: {error.strerror}")
        self.is_held = True
        return budget

    def release(self) -> None:
        self._held.close()
        self.is_held = False


def _without_disk(budget: KvBudget, why: str) -> KvBudget:
    return budget._replace(disk_cap_bytes=0, folder=None, why_no_disk=why)


class _NoDiskError(Exception):
    """Why the disk is not used."""


def _is_removable(folder: Path) -> bool:
    """Whether Linux calls the disk removable; elsewhere nobody says."""
    device = os.stat(folder).st_dev  # noqa: PTH116
    with contextlib.suppress(OSError):
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        for disk in (block, block.parent):
            if (disk / "removable").exists():
                return (disk / "removable").read_text().strip() == "1"
    return False
