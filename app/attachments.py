"""Files that go into a prompt: read within limits, refused where they are no text, fenced so that a model sees where they end.

The same for the command line and for the chat. What is left out of a folder is told, never dropped silently.
"""

import codecs
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from pinyon.app.errors import UsageError
from pinyon.models.disk import printable

MAX_BYTES: Final = 8 << 20
"""Of all that one source brings: more than any context holds."""
MAX_FILES: Final = 1000
"""Of one folder."""
FETCH_S: Final = 30.0
SHOWN_LEFT_OUT: Final = 10
STDIN: Final = "-"
GAP: Final = "\n\n"
"""Between what is attached and what follows it."""

_URL = re.compile(r"https?://", re.IGNORECASE)
_KINDS: Final = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF: convert it first, with `pdftotext FILE -` for example",
    b"PK\x03\x04": "a ZIP archive, or an office document",
    b"\x1f\x8b": "compressed with gzip",
    b"\x7fELF": "a program",
    b"GGUF": "a model",
    b"\xff\xfe": "UTF-16: convert it to UTF-8 first",
    b"\xfe\xff": "UTF-16: convert it to UTF-8 first",
}
"""First bytes of what people attach by mistake."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text with the name under which the prompt shows it; `size_bytes` is the file's."""

    name: str
    text: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Attached:
    """What a source brought. `left_out` are the files of a folder that are no text, with the reasons."""

    attachments: tuple[Attachment, ...]
    left_out: tuple[str, ...] = ()


def attached(source: str, *, urls: bool) -> Attached:
    """Read a file, a folder with all below it, `-` for the standard input, or a URL where `urls` allows it.

    Of a folder hidden files, links and what is no text are left out.

    Raises:
        UsageError: it is not there, is no text, or is larger than the limits.
    """
    if source == STDIN:
        return Attached((_from_stream("stdin", sys.stdin.buffer),))
    if _URL.match(source):
        return Attached((_fetched(source, urls=urls),))
    path = Path(source)
    try:
        if path.is_dir():
            return _folder(path)
        with path.open("rb") as file:
            return Attached((_from_stream(printable(source), file),))
    except OSError as error:
        raise UsageError(f"{printable(source)} cannot be attached: {error.strerror}") from None


def left_out_of(source: str, left_out: Sequence[str]) -> str:
    """Return the sentence about the files of a folder that are no text."""
    more = len(left_out) - SHOWN_LEFT_OUT
    shown = ", ".join(left_out[:SHOWN_LEFT_OUT]) + (f" and {more:,} more" if more > 0 else "")
    return f"left out of {printable(source)}: {shown}"


def fenced(attachment: Attachment) -> str:
    """Return the text below its name, in a fence that nothing inside can close; the fence names the language."""
    longest = max(map(len, re.findall(r"`{3,}", attachment.text)), default=2)
    fence = "`" * (longest + 1)
    return f"{attachment.name}\n{fence}{language(attachment.name)}\n{attachment.text.rstrip(chr(10))}\n{fence}"


def joined(parts: Iterable[str]) -> str:
    """Return what a model reads as one text, an empty line between its parts; what is attached comes first."""
    return GAP.join(part for part in parts if part.strip())


def language(name: str) -> str:
    """Return the word for a file's language as fences have it; empty where the name tells none."""
    from pygments.lexers import find_lexer_class_for_filename  # noqa: PLC0415  only where something is attached

    lexer = find_lexer_class_for_filename(name)
    return str(lexer.aliases[0]) if lexer is not None and lexer.aliases else ""


def _from_stream(name: str, stream: BinaryIO) -> Attachment:
    return _of_bytes(name, stream.read(MAX_BYTES + 1))


def _of_bytes(name: str, data: bytes) -> Attachment:
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, which no context holds: attach a part of it")
    if reason := _why_no_text(data):
        raise UsageError(f"{name} is not text: {reason}")
    return Attachment(name, data.decode("utf-8-sig"), len(data))


def _why_no_text(data: bytes, *, is_cut: bool = False) -> str:
    """Return what bytes are that cannot be attached; empty for text. What `is_cut` may end within a character."""
    kind = next((kind for first, kind in _KINDS.items() if data.startswith(first)), "")
    if (zero := data.find(b"\0")) >= 0:
        return kind or f"there is a zero byte at offset {zero:,}"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError as error:
        return kind or f"byte 0x{data[error.start]:02x} at offset {error.start:,} is not UTF-8"
    return ""


def _folder(folder: Path) -> Attached:
    attachments: list[Attachment] = []
    left_out: list[str] = []
    total_bytes = 0
    for path in _files_below(folder):
        name = printable(path)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1 - total_bytes)
        except OSError as error:
            left_out.append(f"{name} ({error.strerror})")
            continue
        total_bytes += len(data)
        is_cut = total_bytes > MAX_BYTES
        if reason := _why_no_text(data, is_cut=is_cut):
            left_out.append(f"{name} ({reason})")
            total_bytes -= len(data)
            continue
        if is_cut or len(attachments) == MAX_FILES:
            raise UsageError(
                f"{printable(folder)} has more than {MAX_FILES:,} files or {MAX_BYTES >> 20} MiB of text: attach parts of it"
            )
        attachments.append(Attachment(name, data.decode("utf-8-sig"), len(data)))
    if not attachments:
        raise UsageError(f"{printable(folder)} has no text file that could be attached")
    return Attached(tuple(attachments), tuple(left_out))


def _files_below(folder: Path) -> Iterator[Path]:
    """Regular files in the order of their names. Hidden ones and links are not followed: they may lead anywhere."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _fetched(url: str, *, urls: bool) -> Attachment:
    if not urls:
        raise UsageError(
            f"{url} is not fetched: Pinyon reads from the network only where `urls = true` stands in settings.toml, or PINYON_URLS=true is set"
        )
    import httpx  # noqa: PLC0415  takes 0.07 s to import

    data = bytearray()
    try:
        with httpx.stream("GET", url, timeout=FETCH_S, follow_redirects=True) as reply:
            reply.raise_for_status()
            for part in reply.iter_bytes():
                data += part
                if len(data) > MAX_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"{url} cannot be fetched: {error}") from None
    return _of_bytes(url, bytes(data))
