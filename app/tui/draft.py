"""What the user is about to say: words of his own, and what goes along with them. Knows no widget."""

import os.path
import re
from dataclasses import dataclass
from typing import Final

from pinyon.app.attachments import Attachment, attached, fenced, joined
from pinyon.app.conversing import title_of
from pinyon.app.counted import counted
from pinyon.app.history.records import Attached, Message

_MENTION: Final = re.compile(r"(?<!\S)@(\S+?)(?=[.,;:!?)]*(?:\s|$))[ \t]?")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one path or paste brings: `text` as a model reads it, `tokens` None while they are not counted.

    `left_out` are the files of a folder that are no text, with the reasons.
    """

    label: str
    text: str
    size_bytes: int
    tokens: int | None = None
    left_out: tuple[str, ...] = ()

    @classmethod
    def of_paste(cls, pasted: str) -> "Piece":
        text = pasted.replace("\r\n", "\n").replace("\r", "\n")
        label = f"pasted, {counted(len(text.splitlines()), 'line')}"
        size_bytes = len(text.encode("utf-8", "replace"))
        return cls(label, fenced(Attachment("pasted text", text, size_bytes)), size_bytes)

    @classmethod
    def of_source(cls, source: str, *, urls: bool) -> "Piece":
        """Read a file, a folder, `~` for the user's own, or a URL. Raises UsageError."""
        found = attached(os.path.expanduser(source), urls=urls)  # noqa: PTH111  a Path would spoil a URL
        files = len(found.attachments)
        label = source if files == 1 and not found.left_out else f"{source}, {counted(files, 'file')}"
        left_out = f", {len(found.left_out):,} left out" if found.left_out else ""
        return cls(
            label + left_out,
            joined(map(fenced, found.attachments)),
            sum(attachment.size_bytes for attachment in found.attachments),
            left_out=found.left_out,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """What is said: what is `typed`, and the pieces that go along."""

    typed: str
    pieces: tuple[Piece, ...] = ()

    @classmethod
    def of(cls, message: Message) -> "Draft":
        """Return what was said in a message, to be said again or changed."""
        attached = zip(message.attached, message.attached_texts, strict=True)
        return cls(
            message.typed,
            tuple(Piece(each.name, text, each.size_bytes, each.tokens or None) for each, text in attached if text),
        )

    @property
    def text(self) -> str:
        """What the message's text will be."""
        return joined((*(piece.text for piece in self.pieces), self.typed))

    @property
    def attached(self) -> tuple[Attached, ...]:
        return tuple(
            Attached(piece.label, piece.size_bytes, piece.tokens or 0, len(piece.text)) for piece in self.pieces
        )

    @property
    def title(self) -> str:
        return title_of(self.typed) or title_of(self.text)

    @property
    def is_empty(self) -> bool:
        return not (self.pieces or self.typed.strip())


def without_mentions(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without those `@PATH` of which the file or folder is there, and these paths; all else stays as it is."""
    paths: list[str] = []

    def taken(match: re.Match[str]) -> str:
        path = os.path.expanduser(match[1])  # noqa: PTH111  as Piece.of_source does
        if not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH112, PTH113  False for what no path can be
            return match[0]
        paths.append(match[1])
        return ""

    rest = _MENTION.sub(taken, text)
    return (rest.strip(), tuple(dict.fromkeys(paths))) if paths else (text, ())
