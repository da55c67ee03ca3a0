"""Every GGUF file below a folder. Reads folders only: whether a file is a model its header says, when it is added."""

import os
from collections.abc import Iterator
from pathlib import Path

from pinyon.models.adoption.found import Findings, Found, Unusable
from pinyon.models.disk import printable


def find_in(folder: Path) -> Findings:
    """The files by path, through links to folders as well, but in no folder twice; hidden folders are left out."""
    entries = sorted(_walk(folder), key=lambda entry: entry.path)
    return Findings(
        tuple(entry for entry in entries if isinstance(entry, Found)),
        tuple(entry for entry in entries if isinstance(entry, Unusable)),
    )


def _walk(folder: Path) -> Iterator[Found | Unusable]:
    seen: set[tuple[int, int]] = set()
    waiting = [folder]  # no recursion: folders may be nested deeper than Python goes
    while waiting:
        current = waiting.pop()
        try:
            status = current.stat()
            if (key := (status.st_dev, status.st_ino)) in seen:  # a link that leads back
                continue
            seen.add(key)
            entries = [*os.scandir(current)]
        except OSError as error:
            yield Unusable(current, f"{printable(current)} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            path = Path(entry.path)
            if _is_folder(entry):
                if not entry.name.startswith("."):
                    waiting.append(path)
            elif path.suffix.lower() == ".gguf":
                yield Found(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
