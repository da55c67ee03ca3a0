"""What steps cost, kept from one start to the next: a file for each model, machine, number of threads and build."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import msgspec

from pinyon.engine.file_system import FileSystem
from pinyon.engine.step_curve import Curve


def cpu_name() -> str:
    """Return what tells this machine's CPU from others, as far as the system says."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    return f"{platform.machine()} {model} {os.cpu_count()}"


class CostFile:
    """The file of one model's costs in a folder; `digest` is that of its weights."""

    def __init__(self, folder: Path, digest: str, *settings: str, files: FileSystem) -> None:
        name = hashlib.sha256("\0".join((digest, cpu_name(), *settings)).encode()).hexdigest()[:32]
        self._path = folder / f"{name}.json"
        self._files = files
        self.kept = self._read()
        """What was learned before; None where there is nothing that can be used."""

    def _read(self) -> Curve | None:
        try:
            curve = msgspec.json.decode(self._files.read(self._path), type=Curve)
        except (OSError, msgspec.DecodeError):
            return None
        return curve if curve.is_sound else None

    def keep(self, curve: Curve) -> None:
        """Write what was learned, if the disk lets us."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = self._path.with_suffix(".new")
            self._files.write(unfinished, (msgspec.json.encode(curve),))
            self._files.replace(unfinished, self._path)
