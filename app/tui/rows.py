"""Sets text in rows of so many cells: plain text, and blocks of Markdown through Rich.

Nothing here touches a widget, so it may run on a thread. No text is lost: HTML, images and link definitions are shown as they were
written, links with their address and never as links of the terminal, and a block that lost letters or digits on its way is shown plain.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from io import StringIO
from typing import ClassVar, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich._wrap import divide_line  # what Rich and Textual wrap with; only it tells where it broke
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.theme import Theme

from pinyon.app.tui.blocks import Block, Kind
from pinyon.app.tui.safe_text import safe_text

Row: TypeAlias = list[Segment]

MIN_WIDTH = 16
"""Narrower text is set for this many cells and cut off."""

_MOST_CHARACTERS = 200_000  # of a fence or table: setting takes seconds from here on
_MOST_PROSE_CHARACTERS = 16_384  # the parser of inline Markdown is quadratic in some texts
_CELLS_A_LEVEL = 4  # what a quote takes, the most of all

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """How Markdown looks: Rich's styles by name, a style of Pygments, and the colour behind code."""

    styles: dict[str, str] = field(default_factory=dict)
    code_theme: str = "one-dark"
    code_background: str = "default"


class _LeftHeading(Heading):
    """Rich centres the first level."""

    LEVEL_ALIGN: ClassVar = {}


class _Code(CodeBlock):
    """Code on a background of its own, without empty lines around it."""

    background = "default"

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> "_Code":
        code = cls((token.info or "").partition(" ")[0] or "text", markdown.code_theme)
        if isinstance(markdown, _Markdown):
            code.background = markdown.look.code_background
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            self.text.plain.rstrip(),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 1),
            background_color=self.background,
        )


class _Item(ListItem):
    """An item with its number as it was written: with a point or a bracket behind it."""

    mark = ""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> "_Item":  # noqa: ARG003  Rich's signature
        item = cls()
        item.mark = token.markup
        return item

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        # Rich leaves room for the last number: with a digit more there is room for the mark.
        for place, segment in enumerate(super().render_number(console, options, number, 10 * last_number)):
            if place == 0 and isinstance(segment, Segment):
                yield Segment(f"{number}{self.mark} ".rjust(len(segment.text)), segment.style)
            else:
                yield segment


class _Markdown(Markdown):
    """Rich's Markdown from a parser that takes nothing away."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
        "list_item_open": _Item,
    }
    parser: ClassVar = (
        MarkdownIt("commonmark", {"html": False})
        .enable(["strikethrough", "table"])
        .disable(["reference", "image", "autolink"])
    )

    def __init__(self, text: str, look: Look) -> None:
        super().__init__("", code_theme=look.code_theme, hyperlinks=False)
        self.look = look
        self.parsed = self.parser.parse(text)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":  # a line stays a line, as while it streamed
                    child.type = "hardbreak"

    @property
    def depth(self) -> int:
        return max((token.level for token in self.parsed), default=0)

    def loses(self, text: str, rows: list[Row]) -> bool:
        """Return whether letters or digits of the text are not in the rows: cells beyond a table's head, titles of links."""
        # The names of languages are not shown, and lists count for themselves.
        named = "".join(token.info for token in self.parsed if token.type == "fence")
        counted = any(token.type == "ordered_list_open" for token in self.parsed)
        signs = str.isalpha if counted else str.isalnum
        shown = Counter(named)
        for row in rows:
            for segment in row:
                shown.update(segment.text)
        return any(signs(sign) and count > shown[sign] for sign, count in Counter(text).items())


def rows_of(block: Block, width: int, look: Look) -> list[Row]:
    """Return the block's rows of at most `width` cells, without empty ones around them."""
    width = max(width, MIN_WIDTH)
    most = _MOST_CHARACTERS if block.kind in (Kind.FENCE, Kind.TABLE) else _MOST_PROSE_CHARACTERS
    if block.kind is Kind.PLAIN:
        return plain_rows(block.text, width)
    if len(block.text) > most:
        return _without_margins(plain_rows(block.text, width))
    try:
        rows = _markdown_rows(block.text, width, look)
    except Exception:  # noqa: BLE001  # whatever a model wrote, the parser's faults must not end the chat
        _log.exception("a block of %d characters is shown plain", len(block.text))
        rows = None
    return _without_margins(plain_rows(block.text, width) if rows is None else rows)


def plain_rows(text: str, width: int) -> list[Row]:
    """Return text as it stands, wrapped. A newline at its end makes no row of its own."""
    return [row for line in text.removesuffix("\n").split("\n") for row in _line_rows(line, width)]


def estimated_rows(text: str, width: int) -> int:
    """Return about how many rows a text takes, quickly."""
    return sum(1 + len(line) // max(width, MIN_WIDTH) for line in text.removesuffix("\n").split("\n"))


def _line_rows(line: str, width: int) -> list[Row]:
    line = line.expandtabs(4)
    if len(line) <= width and line.isascii():
        return [[Segment(line)]]
    starts = [0, *divide_line(line, width)]
    return [[Segment(line[start:end])] for start, end in zip(starts, [*starts[1:], len(line)], strict=True)]


class Tail:
    """The rows of a plain text that grows at its end. What is wrapped once and cannot change any more is not wrapped again."""

    def __init__(self, width: int) -> None:
        self._width = max(width, MIN_WIDTH)
        self._done: list[Row] = []
        self._rest = ""
        self._last: list[Row] = []

    def feed(self, text: str) -> None:
        *complete, self._rest = (self._rest + text).split("\n")
        for line in complete:
            self._done += _line_rows(line, self._width)
        self._rest = self._rest.expandtabs(4)
        # Words go from left to right: however the last row grows, it begins where it does.
        if cell_len(self._rest) > self._width and (breaks := divide_line(self._rest, self._width)):
            self._done += _line_rows(self._rest[: breaks[-1]], self._width)
            self._rest = self._rest[breaks[-1] :]
        self._last = _line_rows(self._rest, self._width) if self._rest else []

    def __len__(self) -> int:
        return len(self._done) + len(self._last)

    def __getitem__(self, index: int) -> Row:
        return self._done[index] if index < len(self._done) else self._last[index - len(self._done)]


def _markdown_rows(text: str, width: int, look: Look) -> list[Row] | None:
    """Return None where the parser would lose something, or where there is no room for what is nested."""
    markdown = _Markdown(text, look)
    if markdown.depth * _CELLS_A_LEVEL + MIN_WIDTH // 2 > width:
        return None
    console = Console(
        file=StringIO(),
        width=width,
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(look.styles),
    )
    # What a block escapes in its source (&#x202e;) is there again after parsing.
    rows = [
        [Segment(safe_text(segment.text), segment.style) for segment in row if not segment.control]
        for row in console.render_lines(markdown, pad=False)
    ]
    return None if markdown.loses(text, rows) else rows


def _without_margins(rows: list[Row]) -> list[Row]:
    filled = [index for index, row in enumerate(rows) if not _is_empty(row)]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def _is_empty(row: Row) -> bool:
    return all(not segment.text.strip() and (segment.style is None or segment.style.bgcolor is None) for segment in row)
