"""Whether a model's files still hold what they should: against the SHA-256 that somebody vouches for, else their headers.

A digest comes from what Pinyon was told when it fetched the file, from the catalogue, or from the file's name, as Ollama and
the hub's cache call their files by it.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pinyon.models import catalog
from pinyon.models.disk import printable
from pinyon.models.errors import ModelError
from pinyon.models.gguf_header import check_runnable
from pinyon.models.model_record import Record, Source
from pinyon.models.split_files import model_files

_READ_BYTES: Final = 4 << 20
_OLLAMA_NAME: Final = re.compile("sha256-([0-9a-f]{64})")
_HUB_NAME: Final = re.compile("([0-9a-f]{64})")


class Verdict(StrEnum):
    SOUND = "sound"  # every byte is what it should be
    UNPROVEN = "unproven"  # headers and sizes are right; nobody says what the bytes should be
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one model; `detail` is for the user."""

    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class KnownDigest:
    """The SHA-256 in hex that a file should have, and who says so."""

    sha256: str
    witness: str


def known_digests(record: Record) -> tuple[KnownDigest | None, ...]:
    """What is known of each of the record's files, in their order; nothing is read."""
    fetched = record.parts_sha256 if record.parts else (record.sha256,)
    own = [KnownDigest(digest, "what was fetched") if digest else _of_catalogue(record) for digest in fetched]
    own += [None] * (len(record.paths) - len(own))
    return tuple(known or _of_name(path) for known, path in zip(own, record.paths, strict=False))


def verify(record: Record, on_progress: Callable[[int], None] = lambda _bytes_done: None) -> Verification:
    """Check the headers, then read every file whose digest is known; `on_progress` is told the bytes read so far."""
    try:
        check_runnable(*model_files(record.path).headers)
    except ModelError as error:
        again = "" if record.pull_name is None else f"; {_remedy(record)}"
        return Verification(Verdict.DAMAGED, f"{error}{again}")
    known = known_digests(record)
    done = 0
    for path, digest in zip(record.paths, known, strict=True):
        if digest is None:
            continue
        try:
            found = _sha256(path, lambda read, before=done: on_progress(before + read))  # type: ignore[misc]
            done += path.stat().st_size
        except OSError as error:
            return Verification(
                Verdict.DAMAGED, f"{printable(path)} cannot be read: {error.strerror}; {_remedy(record)}"
            )
        if found != digest.sha256:
            return Verification(
                Verdict.DAMAGED,
                f"{printable(path)} has the SHA-256 {found}, and by {digest.witness} it should be {digest.sha256};"
                f" {_remedy(record)}",
            )
    return _verification(known)


def _verification(known: tuple[KnownDigest | None, ...]) -> Verification:
    vouched = [digest for digest in known if digest is not None]
    if len(vouched) < len(known):
        some = f" for {len(known) - len(vouched)} of {len(known)} files" if vouched else ""
        return Verification(Verdict.UNPROVEN, f"header and sizes are right, but no digest is known{some}")
    what = f"SHA-256 {vouched[0].sha256}" if len(vouched) == 1 else f"the SHA-256 of each of {len(vouched)} files"
    return Verification(Verdict.SOUND, f"{what}, by {vouched[0].witness}")


def _of_catalogue(record: Record) -> KnownDigest | None:
    """A file that changed since it was fetched has lost its digest, and the catalogue still knows it."""
    entry = catalog.find(record.name) if record.source is Source.CATALOGUE else None
    return None if entry is None else KnownDigest(entry.sha256, "the catalogue")


def _of_name(path: Path) -> KnownDigest | None:
    real = path.resolve()
    if real.parent.name != "blobs":
        return None
    if name := _OLLAMA_NAME.fullmatch(real.name):
        return KnownDigest(name[1], "its name in Ollama's store")
    name = _HUB_NAME.fullmatch(real.name)  # small files are called by a shorter hash there
    return None if name is None else KnownDigest(name[1], "its name in the Hugging Face cache")


def _remedy(record: Record) -> str:
    if record.pull_name is None:
        return "get the file again from where it came"
    return f"`pinyon pull {record.pull_name}` fetches it again"


def _sha256(path: Path, on_progress: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            done += len(data)
            on_progress(done)
    return digest.hexdigest()
