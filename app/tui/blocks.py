"""Cuts Markdown that comes in pieces into blocks that can be set on their own, as soon as each is complete.

The closed blocks and the open one always concatenate to the text, and the pieces do not matter. Fences and tables close as a whole;
long lists are cut at their items, long prose at its lines. Blank lines begin the block that follows them.
The grammar is CommonMark's (spec 0.31) and GFM's tables, as far as it takes to see where a block ends.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

_LIST_LINES = 24
_PROSE_LINES = 64
_CHARACTERS = 4096  # a block is cut sooner than at its lines where these are long
_PLAIN_LINES = 64
_PLAIN_CHARACTERS = 8192  # also cuts text without line breaks

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_ITEM = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])(?:[ \t]+|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_RULE = re.compile(r" {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$")
_QUOTE = re.compile(r" {0,3}>")
_DELIMITER_ROW = re.compile(r" {0,3}(?=[^|]*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")


class Kind(StrEnum):
    PLAIN = "plain"
    """Not Markdown: shown as it stands."""
    PROSE = "prose"
    FENCE = "fence"
    LIST = "list"
    TABLE = "table"


@dataclass(frozen=True)
class Block:
    """`continues`: it goes on where the block before it was cut, without a gap."""

    kind: Kind
    text: str
    continues: bool = False


class Cutter(Protocol):
    """Text in pieces to closed blocks."""

    @property
    def open(self) -> str:
        """The text after the last closed block."""
        ...

    def feed(self, text: str) -> list[Block]:
        """Take the next piece; return the blocks that it closed."""
        ...

    def close(self) -> list[Block]:
        """End the text; return what was open."""
        ...


@dataclass
class _Open:
    """The lines of the block that may still grow."""

    kind: Kind = Kind.PROSE
    lines: list[str] = field(default_factory=list)
    marker: str = ""
    """Of a list: what its items begin with; numbers count as one."""
    continues: bool = False

    @property
    def empty(self) -> bool:
        return all(not line.strip() for line in self.lines)

    def longer_than(self, lines: int) -> bool:
        return len(self.lines) >= lines or sum(map(len, self.lines)) >= _CHARACTERS

    @property
    def after_blank(self) -> bool:
        return bool(self.lines) and not self.lines[-1].strip()


class MarkdownCutter:
    """The cutter of Markdown. See the module."""

    def __init__(self) -> None:
        self._open = _Open()
        self._fence = ""  # what the fence that is open, in a list perhaps, began with
        self._partial: list[str] = []
        self._closed: list[Block] = []

    @property
    def open(self) -> str:
        return "".join(self._open.lines) + "".join(self._partial)

    def feed(self, text: str) -> list[Block]:
        *complete, rest = text.split("\n")
        for line in complete:
            self._take("".join(self._partial) + line + "\n")
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        return self._taken()

    def close(self) -> list[Block]:
        if self._partial:
            self._take("".join(self._partial))
            self._partial.clear()
        self._end()
        return self._taken()

    def _taken(self) -> list[Block]:
        closed, self._closed = self._closed, []
        return closed

    def _end(self, next_kind: Kind = Kind.PROSE, *, cut: bool = False) -> None:
        """Close the open block, if it has lines, and open the next one. `cut`: they belong together."""
        block = self._open
        if block.lines:
            self._closed.append(Block(block.kind, "".join(block.lines), block.continues))
        self._open = _Open(next_kind, marker=block.marker if cut else "", continues=cut)
        self._fence = ""

    def _begin(self, kind: Kind) -> None:
        """Let a block of this kind begin with the next line. Blank lines before it become its own."""
        if self._open.empty:
            self._open.kind = kind
        else:
            self._end(kind)

    def _take(self, line: str) -> None:
        content = line.rstrip("\n")
        if self._fence:
            self._inside_fence(line, content)
        elif not content.strip():
            self._blank(line)
        elif self._open.kind is Kind.LIST:
            self._after_item(line, content)
        elif self._open.kind is Kind.TABLE and not _starts_block(content):
            self._open.lines.append(line)
        else:
            self._flow(line, content)

    def _inside_fence(self, line: str, content: str) -> None:
        self._open.lines.append(line)
        stripped = content.strip()
        if len(stripped) >= len(self._fence) and set(stripped) == {self._fence[0]}:
            self._fence = ""
            if self._open.kind is Kind.FENCE:
                self._end()

    def _blank(self, line: str) -> None:
        if self._open.kind is not Kind.LIST and not self._open.empty:
            self._end()
        self._open.lines.append(line)

    def _after_item(self, line: str, content: str) -> None:
        """Take a line that is not blank while a list is open."""
        item = None if _RULE.match(content) else _ITEM.match(content)
        indent = len(content) - len(content.lstrip())
        if item and indent < 2:  # deeper ones belong to an item, also where CommonMark asks for three
            self._item(line, content, item)
        elif indent >= 2 or not (self._open.after_blank or _starts_block(content)):
            self._open.lines.append(line)
            self._watch_fence(content.lstrip())
        else:
            self._end()
            self._flow(line, content)

    def _item(self, line: str, content: str, item: re.Match[str]) -> None:
        marker = item[1] if item[1] in "-+*" else item[1][-1]
        if self._open.kind is Kind.LIST and marker == self._open.marker:
            if self._open.longer_than(_LIST_LINES):
                self._end(Kind.LIST, cut=True)
        else:
            self._begin(Kind.LIST)
            self._open.marker = marker
        self._open.lines.append(line)
        self._watch_fence(content[item.end() :].lstrip())

    def _watch_fence(self, content: str) -> None:
        if fence := _FENCE.match(content):
            self._fence = fence[1]

    def _flow(self, line: str, content: str) -> None:
        """Take a line that is not blank, between blocks or in prose."""
        if _FENCE.match(content):
            self._begin(Kind.FENCE)
            self._open.lines.append(line)
            self._watch_fence(content)
        elif _HEADING.match(content):
            self._begin(Kind.PROSE)
            self._open.lines.append(line)
            self._end()
        elif (item := _ITEM.match(content)) and not _RULE.match(content) and self._may_begin_list(item):
            self._item(line, content, item)
        elif _DELIMITER_ROW.match(content) and self._head_row():
            self._open.lines.append(line)
        else:
            self._prose(line)

    def _may_begin_list(self, item: re.Match[str]) -> bool:
        """Return whether this is an item. Prose goes on over an empty item, and over one that does not count from 1."""
        if self._open.kind is Kind.PROSE and not self._open.empty:
            return item.end() < len(item.string) and item[1] in ("-", "+", "*", "1.", "1)")
        return True

    def _head_row(self) -> bool:
        """Make a table of the last line, if it can be a table's head."""
        lines = self._open.lines
        if self._open.kind is not Kind.PROSE or self._open.empty or "|" not in lines[-1]:
            return False
        head = lines.pop()
        self._begin(Kind.TABLE)
        self._open.lines.append(head)
        return True

    def _prose(self, line: str) -> None:
        if self._open.kind is not Kind.PROSE:
            self._end()
        elif self._open.longer_than(_PROSE_LINES):
            self._end(cut=True)
        self._open.lines.append(line)


def _starts_block(content: str) -> bool:
    """Return whether a line ends a table or a list's paragraph by what it begins."""
    return any(pattern.match(content) for pattern in (_FENCE, _HEADING, _RULE, _QUOTE, _ITEM))


class PlainCutter:
    """The cutter of text that is no Markdown: blocks of so many lines or characters."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._lines = 0
        self._characters = 0
        self._begun = False

    @property
    def open(self) -> str:
        return "".join(self._open)

    def feed(self, text: str) -> list[Block]:
        closed: list[Block] = []
        for line in text.splitlines(keepends=True):
            start = 0
            while start < len(line):
                piece = line[start : start + _PLAIN_CHARACTERS - self._characters]
                start += len(piece)
                self._open.append(piece)
                self._characters += len(piece)
                self._lines += piece.endswith("\n")
                if self._lines == _PLAIN_LINES or self._characters == _PLAIN_CHARACTERS:
                    closed += self.close()
        return closed

    def close(self) -> list[Block]:
        text, begun = self.open, self._begun
        self._open, self._lines, self._characters = [], 0, 0
        self._begun = True
        return [Block(Kind.PLAIN, text, continues=begun)] if text else []
