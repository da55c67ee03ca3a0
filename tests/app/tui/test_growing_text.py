"""A text that grows: its rows are those of the text at any moment, whatever the pieces."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_texts import cut_at, documents

from pinyon.app.tui.blocks import Kind, MarkdownCutter, PlainCutter
from pinyon.app.tui.growing_text import GrowingText
from pinyon.app.tui.rows import Look, Row, plain_rows, rows_of


def texts(rows: list[Row]) -> list[str]:
    return ["".join(segment.text for segment in row).rstrip() for row in rows]


def rows(text: GrowingText) -> list[str]:
    return texts([text[row] for row in range(len(text))])


def put_all(text: GrowingText) -> None:
    width = text.width
    text.put({part: rows_of(part.block, width, Look()) for part in text.unset(0)}, width)


def unset_rows(document: str, width: int) -> list[str]:
    """What a text shows before anything is set, put together anew: plain rows, and of fences their code."""
    cutter = MarkdownCutter()
    shown: list[str] = []
    closed = cutter.feed(document)
    for place, (kind, text) in enumerate([*((block.kind, block.text) for block in closed), (cutter.kind, cutter.open)]):
        if kind is not Kind.FENCE:
            shown += texts(plain_rows(text, width)) if text else []
            continue
        code = text.lstrip().split("\n", 1)[1]
        if place < len(closed):
            code = re.sub(r"(^|\n) *(```|~~~)\s*$", "", code)
        shown += [""] if place else []
        shown += (
            [f" {row}".rstrip() for row in texts(plain_rows(code, width - 2))] if code or place < len(closed) else []
        )
    return shown


@settings(deadline=None)
@given(documents, st.lists(st.integers(0, 400), max_size=12), st.integers(20, 80))
def test_unset_it_shows_the_plain_rows_of_its_text(document: str, cuts: list[int], width: int) -> None:
    document = document.replace("\t", " ")
    text = GrowingText(MarkdownCutter())
    text.set_width(width)
    fed = ""
    for piece in cut_at(document, cuts):
        text.feed(piece)
        fed += piece
        assert text.text == fed
        assert rows(text) == unset_rows(fed, width)
    text.close()
    assert text.text == document


def test_a_fence_is_code_from_its_first_line_on_and_takes_the_same_rows_when_it_is_set() -> None:
    text = GrowingText(MarkdownCutter())
    text.set_width(30)
    for piece in ("Look:\n\n", "```py", "thon\n", "def f():\n", "\n", "    return 1\n", "``"):
        text.feed(piece)
        put_all(text)
        if piece == "```py":
            assert rows(text) == ["Look:", "", "```py"]
            assert not text.is_code(2)
    assert rows(text) == ["Look:", "", " def f():", "", "     return 1", " ``"]
    assert [text.is_code(row) for row in range(len(text))] == [False, False, True, True, True, True]
    text.feed("`\n")
    unset = rows(text)
    assert unset == ["Look:", "", " def f():", "", "     return 1"]
    assert [text.is_code(row) for row in range(len(text))] == [False, False, True, True, True]
    put_all(text)
    assert rows(text) == unset
    assert not any(text.is_code(row) for row in range(len(text)))


@settings(max_examples=50, deadline=None)
@given(documents, st.lists(st.integers(0, 400), max_size=6))
def test_set_it_shows_the_same_however_it_came(document: str, cuts: list[int]) -> None:
    whole, pieces = GrowingText(MarkdownCutter()), GrowingText(MarkdownCutter())
    whole.feed(document)
    whole.close()
    whole.set_width(60)
    put_all(whole)
    pieces.set_width(33)
    for piece in cut_at(document, cuts):
        pieces.feed(piece)
        put_all(pieces)
    pieces.close()
    pieces.set_width(60)
    put_all(pieces)
    assert rows(pieces) == rows(whole)
    assert list(whole.unset(0)) == []


def test_where_there_is_hardly_any_room_rows_are_cut_off_and_none_is_lost() -> None:
    for width in (1, 2, 3):
        text = GrowingText(MarkdownCutter())
        text.set_width(width)
        for piece in ("Look\u6f22:\n\n", "```py\n", "x = 1\n", "```\n", "so"):
            text.feed(piece)
        assert rows(text) == ["Look\u6f22:", "", " x = 1", "so"]
        assert [row for row in range(len(text)) if text.is_code(row)] == [2]


def test_rows_for_another_width_are_not_taken() -> None:
    text = GrowingText(MarkdownCutter())
    text.feed("**prose**\n\n")
    text.close()
    text.set_width(40)
    late = {part: rows_of(part.block, 40, Look()) for part in text.unset(0)}
    text.set_width(50)
    text.put(late, 40)
    assert rows(text)[0] == ""  # still only room
    put_all(text)
    assert rows(text) == ["prose"]


def test_the_nearest_blocks_are_set_first() -> None:
    text = GrowingText(PlainCutter())
    text.feed("line\n" * 640)
    text.close()
    text.set_width(40)
    assert [text.row_of(text.place_at(320)), len(text)] == [320, 640]
    starts = [int(part.block.text.count("\n")) for part in text.unset(320)]
    assert len(starts) == 9  # the first one was set at once
    assert next(text.unset(320)) is text._parts[5]


def test_a_place_stays_where_its_text_is_when_rows_above_it_change() -> None:
    text = GrowingText(MarkdownCutter())
    text.feed("".join(f"- item {number}\n" for number in range(20)) + "\nprose\n\nthe place\n\nend\n")
    text.close()
    text.set_width(60)
    put_all(text)
    place = text.place_at(rows(text).index("the place"))
    text.set_width(20)
    text.forget_look()
    text.put({part: [[], [], []] for part in list(text.unset(0))[:1]}, 20)
    assert rows(text)[text.row_of(place)] in ("", "the place")
    assert rows(text)[text.row_of(place) :].index("the place") <= 1
