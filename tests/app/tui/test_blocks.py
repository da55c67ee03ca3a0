"""Blocks: they concatenate to the text, whatever the pieces, and each can be set on its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_texts import cut_at, documents, hostile_text

from pinyon.app.tui.blocks import Block, Cutter, Kind, MarkdownCutter, PlainCutter

cuts = st.lists(st.integers(0, 2000), max_size=12)


def closed(cutter: Cutter, pieces: list[str]) -> list[Block]:
    blocks: list[Block] = []
    fed = ""
    for piece in pieces:
        blocks += cutter.feed(piece)
        fed += piece
        assert "".join(block.text for block in blocks) + cutter.open == fed
    blocks += cutter.close()
    assert cutter.open == ""
    assert "".join(block.text for block in blocks) == fed
    return blocks


def markdown(text: str) -> list[Block]:
    return closed(MarkdownCutter(), [text])


def kinds(text: str) -> list[Kind]:
    return [block.kind for block in markdown(text)]


@settings(max_examples=300)
@given(documents | st.text(), cuts)
def test_blocks_concatenate_and_do_not_depend_on_the_pieces(text: str, cuts: list[int]) -> None:
    for cutter in (MarkdownCutter, PlainCutter):
        assert closed(cutter(), cut_at(text, cuts)) == closed(cutter(), [text])


def test_ten_thousand_hostile_texts_concatenate_in_single_characters() -> None:
    for seed in range(10_000):
        text = hostile_text(seed)
        cutter = MarkdownCutter()
        blocks = [block for character in text for block in cutter.feed(character)] + cutter.close()
        assert "".join(block.text for block in blocks) == text


@pytest.mark.parametrize(
    "text",
    [
        "# A\n\nSome *prose* that\ngoes on.\n\n1. one\n2. two\n   - deep\n\n     para\n\n```sh\nls\n\n# no head\n```\n\nend\n",
        "Setext\n===\ntext\n---\n> quote\nlazy\n\n***\n| a | b |\n|:--|--:|\n| 1 | 2 |\nthree\n\nend",
        "- a\n\n  ```\n  - x\n  ```\n- b\n\n      code\n\nprose\n```\nopen to the end\n\n- still code\n",
        "para\n    no code\n\n    code\n\nprose\n",
        "10. ten\n11. eleven\n\n* other\n+ another\n",
    ],
)
def test_blocks_parse_like_the_text_that_they_were_cut_from(text: str) -> None:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference")

    def tokens(part: str) -> list[tuple[str, str, str]]:
        return [(token.type, token.content, token.info) for token in parser.parse(part)]

    assert [token for block in markdown(text) for token in tokens(block.text)] == tokens(text)


def test_each_kind_closes_where_it_ends() -> None:
    text = "# Head\nprose\nmore\n\n- a\n- b\n\n```py\nx\n\ny\n```\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"
    assert [(block.kind, block.text) for block in markdown(text)] == [
        (Kind.PROSE, "# Head\n"),
        (Kind.PROSE, "prose\nmore\n"),
        (Kind.LIST, "\n- a\n- b\n\n"),
        (Kind.FENCE, "```py\nx\n\ny\n```\n"),
        (Kind.TABLE, "| a | b |\n|---|---|\n| 1 | 2 |\n"),
        (Kind.PROSE, "\nend"),
    ]


def test_a_block_closes_as_soon_as_it_can() -> None:
    cutter = MarkdownCutter()
    assert cutter.feed("```\ncode\n``") == []
    assert [block.text for block in cutter.feed("`\n")] == ["```\ncode\n```\n"]
    assert cutter.feed("prose\n") == []
    assert [block.text for block in cutter.feed("\n")] == ["prose\n"]


def test_long_lists_are_cut_at_items_and_go_on() -> None:
    items = [f"{number}. item\n   more of it\n" for number in range(1, 101)]
    blocks = markdown("".join(items))
    assert len(blocks) > 5
    assert [block.continues for block in blocks] == [False, *[True] * (len(blocks) - 1)]
    assert all(block.kind is Kind.LIST and block.text.splitlines()[0].endswith("item") for block in blocks)


def test_a_list_is_not_cut_inside_a_fence_of_an_item() -> None:
    text = "- item\n  ```\n" + "- not an item\n" * 60 + "  ```\n- next\n"
    assert [block.text for block in markdown(text)] == [text[: -len("- next\n")], "- next\n"]


def test_fences_and_tables_stay_whole() -> None:
    fence = "```\n" + "line\n" * 500 + "```\n"
    table = "| a |\n|---|\n" + "| 1 |\n" * 500
    assert kinds(fence) == [Kind.FENCE]
    assert kinds(table) == [Kind.TABLE]


def test_endless_prose_is_cut_at_lines() -> None:
    blocks = markdown("line\n" * 200)
    assert [len(block.text.splitlines()) for block in blocks] == [64, 64, 64, 8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text\n---\n", [Kind.PROSE]),
        ("text\n2. not a list\n", [Kind.PROSE]),
        ("text\n1. a list\n", [Kind.PROSE, Kind.LIST]),
        ("- a\n* b\n", [Kind.LIST, Kind.LIST]),
        ("* * *\n", [Kind.PROSE]),
        ("a | b\n--|--\n1 | 2\n# Head\n", [Kind.TABLE, Kind.PROSE]),
        ("- a\nlazy\n", [Kind.LIST]),
        ("- a\n\nnot lazy\n", [Kind.LIST, Kind.PROSE]),
        ("``` not `a` fence\n", [Kind.PROSE]),
        ("~~~\n```\n~~~\nx\n", [Kind.FENCE, Kind.PROSE]),
        ("````\n```\n````\n", [Kind.FENCE]),
        ("\n\n", [Kind.PROSE]),
        ("", []),
    ],
)
def test_what_begins_and_ends_a_block(text: str, expected: list[Kind]) -> None:
    assert kinds(text) == expected


def test_plain_text_is_cut_by_lines_and_by_characters() -> None:
    assert [len(block.text) for block in closed(PlainCutter(), ["x" * 20_000])] == [8192, 8192, 20_000 - 2 * 8192]
    assert [block.continues for block in closed(PlainCutter(), ["line\n" * 130])] == [False, True, True]
