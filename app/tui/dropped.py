"""What a terminal pastes when files are dropped on it: their paths, quoted in the terminal's own way."""

import shlex
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

MAX_CHARS: Final = 64 << 10
"""A longer paste is no list of paths: looking at each word of it would take too long."""


def dropped_paths(pasted: str) -> tuple[Path, ...]:
    """Return the files and folders that a paste consists of; nothing if any word of it is something else.

    Only absolute paths of what is there count, bare, in quotes, with backslashes, or as `file:` URLs.
    """
    text = pasted.strip()
    if not text.startswith(("/", "~", "'", '"', "file://")) or len(text) > MAX_CHARS:
        return ()
    whole = _existing(text)
    if whole is not None:  # unquoted, with spaces in its name
        return (whole,)
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote
        return ()
    paths = tuple(_existing(word) for word in words)
    return tuple(path for path in paths if path is not None) if all(paths) else ()


def _existing(word: str) -> Path | None:
    """Return the absolute path of a file or folder; pipes and devices, which may never end, are none."""
    if word.startswith("file://"):
        word = unquote(urlsplit(word).path)
    try:
        path = Path(word).expanduser()
        return path if path.is_absolute() and (path.is_file() or path.is_dir()) else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a zero byte
        return None
