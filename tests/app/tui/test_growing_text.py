"""A text that grows: its rows are those of the text at any moment, whatever the pieces."""

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_texts import cut_at, documents

from pinyon.app.tui.blocks import MarkdownCutter, PlainCutter
from pinyon.app.tui.growing_text import GrowingText
from pinyon.app.tui.rows import Look, Row, plain_rows, rows_of


def texts(rows: list[Row]) -> list[str]:
    return ["".join(segment.text for segment in row).rstrip() for row in rows]


def rows(text: GrowingText) -> list[str]:
    return texts([text[row] for row in range(len(text))])


def put_all(text: GrowingText) -> None:
    width = text.width
    text.put({part: rows_of(part.block, width, Look()) for part in text.unset(0)}, width)


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
        assert rows(text) == (texts(plain_rows(fed, width)) if fed else [])
    text.close()
    assert text.text == document


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
