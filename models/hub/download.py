"""Fetches a model's files from the hub into `<models_dir>/hub/OWNER/REPO/`; each is verified before it gets its name there.

An unfinished file lies in `<models_dir>/.partial`, under a name that holds the SHA-256 it is to have: a pull that was
interrupted, however it was, goes on with it, and drops it when the hub has another file by then. A lock keeps a second pull of
the same model waiting.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pinyon.models.catalog import slug
from pinyon.models.disk import printable, private_folder, sha256_of, sync_folder
from pinyon.models.errors import DownloadError, StoreError
from pinyon.models.hub.patience import Patience, StoppedError
from pinyon.models.hub.repo import HubFile, HubModel, HubRepo
from pinyon.models.hub.safe_names import checked_parts

_SPARE_BYTES: Final = 64 << 20  # so that the disk is not filled to the last byte
_LOOK_EVERY_S: Final = 0.2


def fetch(
    repo: HubRepo,
    model: HubModel,
    models_dir: Path,
    progress: Callable[[int], None],
    waiting: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Path, ...]:
    """Fetch a model and return its files, verified, in its order; `progress` is told the bytes that are here, of `model.size_bytes`.

    `waiting` is called once where another pull of the same model is running, whose end is waited for. Raises StoreError when
    the disk has too little space, DownloadError for everything else; what is here of the files then stays to go on with.
    """
    targets = [_target(models_dir, repo.repo_id, file) for file in model.files]
    again = f"`pinyon pull {repo.repo_id}:{printable(model.label)}` goes on from there"
    try:
        _stay_inside(models_dir, models_dir / ".partial")
        partial_dir = private_folder(models_dir / ".partial")
        stem = _stem(repo, model)
        with _sole_writer(partial_dir / f"{stem}.lock", waiting, cancelled):
            _Pull(repo, model, partial_dir, stem, Patience(cancelled=cancelled)).run(targets, models_dir, progress)
    except StoppedError:
        raise DownloadError(f"stopped: {again}") from None
    except OSError as error:
        raise DownloadError(
            f"{repo.repo_id} could not be written to {printable(models_dir)}: {error.strerror}; {again}"
        ) from None
    return tuple(targets)


class _Pull:
    """One run of `fetch`, under its lock."""

    def __init__(self, repo: HubRepo, model: HubModel, partial_dir: Path, stem: str, patience: Patience) -> None:
        self._repo = repo
        self._patience = patience
        self._partials = {file.name: partial_dir / f"{stem}.{file.sha256}.part" for file in model.files}
        self._files = model.files
        for left in partial_dir.glob(f"{stem}.*.part"):
            if left not in self._partials.values() or left.is_symlink():
                left.unlink()

    def run(self, targets: list[Path], models_dir: Path, progress: Callable[[int], None]) -> None:
        missing = [
            (file, target) for file, target in zip(self._files, targets, strict=True) if not _is_verified(target, file)
        ]
        self._check_space([file for file, _ in missing], models_dir)
        done = sum(file.size_bytes for file in self._files) - sum(file.size_bytes for file, _ in missing)
        for file, target in missing:
            _stay_inside(models_dir, target.parent)
            private_folder(target.parent)
            self._receive(file, done, progress)
            self._verify(file)
            self._partials[file.name].replace(target)
            sync_folder(target.parent)
            done += file.size_bytes
        progress(done)

    def _receive(self, file: HubFile, done: int, progress: Callable[[int], None]) -> None:
        from pinyon.models.hub.remote_file import RemoteFile  # noqa: PLC0415  what is here needs no library of the hub

        partial = self._partials[file.name]
        with open(partial, "ab", opener=_private) as received:  # Path.open takes no opener
            if received.tell() > file.size_bytes:
                received.truncate(0)
            here = partial.stat().st_size
            progress(done + here)
            for piece in RemoteFile(self._repo, file, self._patience).stream(here, file.size_bytes):
                received.write(piece)
                here += len(piece)
                progress(done + here)
            received.flush()
            os.fsync(received.fileno())

    def _verify(self, file: HubFile) -> None:
        partial = self._partials[file.name]
        if (digest := sha256_of(partial)) != file.sha256:
            size = partial.stat().st_size
            partial.unlink()
            raise DownloadError(
                f"{printable(file.name)} arrived wrong and was deleted: {size:,} bytes with SHA-256 {digest} instead of"
                f" {file.size_bytes:,} with {file.sha256}; pull again"
            )

    def _check_space(self, files: list[HubFile], folder: Path) -> None:
        here = sum(self._partials[file.name].stat().st_size for file in files if self._partials[file.name].exists())
        needed = sum(file.size_bytes for file in files) - here + (_SPARE_BYTES if files else 0)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise StoreError(
                f"{self._repo.repo_id} needs {needed:,} bytes more, but {printable(folder)} has {free:,} left: free"
                f" {needed - free:,} bytes and pull again"
            )


def _target(models_dir: Path, repo_id: str, file: HubFile) -> Path:
    """Where the file will lie. Raises DownloadError for a name that is not safe, and for a file without a digest."""
    if file.sha256 is None:
        raise DownloadError(
            f"the hub has no SHA-256 of {printable(file.name)}, so it cannot be verified: take another file"
        )
    return models_dir.joinpath("hub", *checked_parts(repo_id), *checked_parts(file.name))


def _stem(repo: HubRepo, model: HubModel) -> str:
    """Names this model's files in the folder of partial ones; two models never share it."""
    name = f"{repo.repo_id}:{model.label}"
    return f"{slug(name)[:60]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _stay_inside(models_dir: Path, folder: Path) -> None:
    """Raises DownloadError where a symbolic link leads out of the models folder; asked before anything is made there."""
    if not folder.resolve().is_relative_to(models_dir.resolve()):
        raise DownloadError(
            f"{printable(folder)} leads out of {printable(models_dir)}, through a symbolic link: remove the link and pull again"
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_verified(target: Path, file: HubFile) -> bool:
    """Whether an earlier pull got as far as this file."""
    return target.is_file() and target.stat().st_size == file.size_bytes and sha256_of(target) == file.sha256


@contextlib.contextmanager
def _sole_writer(path: Path, waiting: Callable[[], None], cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock, which the system frees when its holder ends, however it ends."""
    from filelock import FileLock, Timeout  # noqa: PLC0415  asking what is here needs no lock

    lock = FileLock(path, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting()
        while not lock.is_locked:
            if cancelled():
                raise StoppedError("stopped") from None
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=_LOOK_EVERY_S)
    try:
        yield
    finally:
        lock.release()
