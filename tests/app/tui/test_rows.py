"""Rows: as wide as asked for, nothing lost, nothing obeyed."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_texts import cut_at, documents, hostile_text
from rich.cells import cell_len

from pinyon.app.tui import rows as module
from pinyon.app.tui.blocks import Block, Kind, MarkdownCutter
from pinyon.app.tui.rows import MIN_WIDTH, Look, Row, Tail, plain_rows, rows_of
from pinyon.app.tui.safe_text import safe_text


def texts(rows: list[Row]) -> list[str]:
    return ["".join(segment.text for segment in row).rstrip() for row in rows]


def shown(text: str, width: int = 60, kind: Kind = Kind.PROSE) -> str:
    return "\n".join(texts(rows_of(Block(kind, text), width, Look())))


def markdown_rows(text: str, width: int) -> list[Row]:
    cutter = MarkdownCutter()
    return [row for block in cutter.feed(text) + cutter.close() for row in rows_of(block, width, Look())]


def letters(text: str) -> list[str]:
    return [sign for sign in text if sign.isalpha()]


R14 = "[/INST] [0] [bold [/ a[b + [@click=app.quit]x[/]"


@pytest.mark.parametrize(
    "text",
    [R14, "<div>html</div>", "<!-- comment -->", "![image](path.png)", "[x]: http://reference", "<http://auto.link>"],
)
def test_what_is_no_markdown_of_ours_is_shown_as_it_stands(text: str) -> None:
    assert text.removeprefix("!") in shown(text).replace("image (path.png)", "[image](path.png)")


def test_links_show_their_address_and_are_no_links_of_the_terminal() -> None:
    rows = rows_of(Block(Kind.PROSE, "see [here](http://x/y)"), 60, Look())
    assert texts(rows) == ["see here (http://x/y)"]
    assert all(segment.style is None or segment.style.link is None for row in rows for segment in row)


@pytest.mark.parametrize(
    "text",
    [
        "> " * 30 + "deep quote",
        "".join("  " * depth + "- item\n" for depth in range(15)) + "  " * 15 + "deepest\n",
        "| a |\n|---|\n| one | beyond |\n",
        '[link](http://x "title")',
    ],
)
@pytest.mark.parametrize("width", [MIN_WIDTH, 30, 100])
def test_what_markdown_would_drop_is_shown_plain(text: str, width: int) -> None:
    assert letters(shown(text, width)) == letters(text)


def test_lines_stay_lines() -> None:
    assert shown("roses\nviolets") == "roses\nviolets"


def test_numbers_of_a_cut_list_go_on() -> None:
    assert texts(markdown_rows("".join(f"{n}. item\n" for n in range(1, 100)), 40))[-1].strip() == "99. item"


@pytest.mark.parametrize("marked", ["1.", "1)", "7.", "0."])
def test_a_number_is_shown_as_it_was_written(marked: str) -> None:
    assert shown(f"{marked} one", kind=Kind.LIST).strip() == f"{marked} one"


def test_numbers_of_several_digits_stand_below_each_other() -> None:
    rows = texts(rows_of(Block(Kind.LIST, "9. nine\n9. ten\n   and more\n\n   - within\n"), 40, Look()))
    assert rows == ["  9. nine", " 10. ten", "     and more", "      • within"]


def test_code_keeps_its_lines_and_has_a_background() -> None:
    rows = rows_of(
        Block(Kind.FENCE, "```python\n\ndef f():\n\treturn '[/]'\n```\n"), 40, Look(code_background="#123456")
    )
    assert [text.strip() for text in texts(rows)] == ["", "def f():", "return '[/]'"]
    assert all(segment.style.bgcolor.name == "#123456" for row in rows for segment in row if segment.text.strip())


def test_an_escaped_control_code_is_taken_out_after_parsing() -> None:
    assert "\u202e" not in shown("a &#x202e; b")


def test_a_faulty_parser_does_not_end_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RecursionError

    monkeypatch.setattr(module, "_markdown_rows", fail)
    assert shown("**text**") == "**text**"


@pytest.mark.parametrize("piece", ["[", "*", "`", "a**b", "> ", "![", "|", "- ", "<", "_a ", "[a](", "&", "\\"])
def test_texts_that_take_parsers_long_are_shown(piece: str) -> None:
    text = piece * (16_000 // len(piece))
    assert len(rows_of(Block(Kind.PROSE, text), 80, Look())) > 0


@settings(max_examples=150, deadline=None)
@given(documents, st.integers(1, 120))
def test_markdown_fits_and_loses_no_letter(text: str, width: int) -> None:
    cutter = MarkdownCutter()
    for block in cutter.feed(text) + cutter.close():
        rows = rows_of(block, width, Look())
        assert all(cell_len(text) <= max(width, MIN_WIDTH) for text in texts(rows))
        missing = letters(re.sub(r"(`{3,}|~{3,})[^\n]*", "", block.text))  # the names of languages are not shown
        for letter in letters("".join(texts(rows))):
            if letter in missing:
                missing.remove(letter)
        assert missing == []


def test_hostile_texts_have_no_control_codes_in_their_rows() -> None:
    for seed in range(400):
        for text in texts(markdown_rows(safe_text(hostile_text(seed)), 50)):
            assert safe_text(text) == text
            assert "\n" not in text


scripts = st.text(st.sampled_from("ab 漢字👩\u200d🦰e\u0301\u05d0\u05d1\u0639\t\n"), max_size=200)


@given(scripts, st.integers(MIN_WIDTH, 60))
def test_plain_text_fits_and_is_complete(text: str, width: int) -> None:
    rows = plain_rows(text, width)
    assert all(cell_len(line) <= width for line in texts(rows))
    assert "".join("".join(texts(rows)).split()) == "".join(text.split())


@given(scripts, st.integers(MIN_WIDTH, 60), st.lists(st.integers(0, 300), max_size=8))
def test_a_tail_that_grew_is_the_text_that_was_there_at_once(text: str, width: int, cuts: list[int]) -> None:
    text = text.replace("\t", " ")  # a tab's width is counted from where the piece began
    tail = Tail(width)
    for piece in cut_at(text, cuts):
        tail.feed(piece)
    rows = [tail[index] for index in range(len(tail))]
    assert texts(rows) == (texts(plain_rows(text, width)) if text else [])
