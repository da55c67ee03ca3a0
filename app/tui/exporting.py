"""From the chat to a file: which format a name asks for, and a file that is never written over."""

import os.path
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pinyon.app.errors import UsageError
from pinyon.app.history import export
from pinyon.app.history.records import Conversation, Message
from pinyon.models.disk import printable

_FORMATS: Final[dict[str, Callable[..., str]]] = {
    ".md": export.markdown,
    ".jsonl": export.jsonl,
    ".html": export.html,
}
MAX_NAME_CHARS: Final = 48


def suggested_name(title: str) -> str:
    """Return a file name for a conversation with this title."""
    words = re.sub(r"\W+", "-", title.lower())[:MAX_NAME_CHARS].strip("-")
    return f"{words or 'conversation'}.md"


def export_to(path: Path, conversation: Conversation, messages: Sequence[Message], *, reasoning: bool) -> None:
    """Write the messages to a new file, in the format of its name.

    Raises:
        UsageError: the name has no known format, something is there already, or it cannot be written.
    """
    write = _FORMATS.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"{printable(path)} has no known format: the name ends in {', '.join(_FORMATS)}")
    text = write(conversation, messages, reasoning=reasoning)
    try:
        with Path(os.path.expanduser(path)).open(  # noqa: PTH111  a Path's own refuses an unknown user
            "x", encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{printable(path)} is there already: choose another name") from error
    except OSError as error:
        raise UsageError(f"{printable(path)} cannot be written: {error.strerror}") from error
