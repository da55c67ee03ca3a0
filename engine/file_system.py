"""What the block store asks of the operating system. One seam, so that tests can make any of these calls fail."""

import os
from collections.abc import Sequence
from pathlib import Path

from pinyon.engine.block import Payload

_OWNER_ONLY = 0o600


class FileSystem:
    """All methods raise OSError."""

    def paths(self, folder: Path) -> list[Path]:
        return [*folder.iterdir()]

    def head(self, path: Path, max_bytes: int) -> tuple[bytes, int, float]:
        """Return the first bytes of a file, how many it has, and when it was written, in seconds since 1970."""
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            return file.read(max_bytes), status.st_size, status.st_mtime

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, parts: Sequence[Payload]) -> None:
        """Make a file that only its owner can read; return when the disk has it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
