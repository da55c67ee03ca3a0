"""Where a prompt comes from: the words of the command line, a pipe, attached files."""

import os
import select
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pinyon.app.attachments import STDIN, Attachment, attached, fenced, joined, left_out_of
from pinyon.app.cli.terminal import tell
from pinyon.app.errors import UsageError

GRACE_S: Final = 5.0
"""How long a pipe may stay silent beside a prompt: many programs leave one open that nobody ever writes to."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the command was given, in the order in which a model reads it: files, the pipe's text, the words."""

    attachments: tuple[Attachment, ...]
    piped: str
    words: str

    @property
    def text(self) -> str:
        """All of it as one text; empty where nothing was given."""
        return joined((*map(fenced, self.attachments), self.piped, self.words))


def given(words: Iterable[str], files: Sequence[str], *, urls: bool, pipe_is_needed: bool) -> Given:
    """Read everything. A pipe that is not needed for a prompt is left alone once it was silent for `GRACE_S`.

    Raises:
        UsageError: something is no text, or cannot be read.
    """
    spoken = " ".join(map(argument_text, words))
    attachments = tuple(attachment for source in files for attachment in _attachments(source, urls=urls))
    if sys.stdin.isatty() or STDIN in files:
        return Given(attachments, "", spoken)
    is_needed = pipe_is_needed and not (spoken.strip() or attachments)
    return Given(attachments, piped_text(None if is_needed else GRACE_S), spoken)


def argument_text(argument: str) -> str:
    """Return an argument as text; where the locale could not decode its bytes, they are UTF-8. Raises UsageError."""
    try:
        return os.fsencode(argument).decode() if any("\udc80" <= c <= "\udcff" for c in argument) else argument
    except UnicodeDecodeError as error:
        raise UsageError(f"an argument is neither in the locale's encoding nor UTF-8: {error}") from error


def piped_text(grace_s: float | None) -> str:
    """Return all of the standard input; nothing where it was silent for `grace_s` (None: wait). Raises UsageError."""
    if grace_s is not None and not _has_begun(grace_s):
        tell(f"nothing came through the pipe within {grace_s:g} s, so it is left out; `-f -` waits for it")
        return ""
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the text from the pipe is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}; convert it first"
        ) from error


def _has_begun(grace_s: float) -> bool:
    """Whether the standard input has its first byte, or its end, within that time."""
    try:
        return bool(select.select([sys.stdin], [], [], grace_s)[0])
    except (OSError, ValueError):  # no file that can be waited for (Windows): reading it tells
        return True


def _attachments(source: str, *, urls: bool) -> tuple[Attachment, ...]:
    found = attached(source, urls=urls)
    if found.left_out:
        tell(left_out_of(source, found.left_out))
    return found.attachments
