"""What a terminal would obey is taken out, and nothing else."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.app.tui.safe_text import one_line, safe_text

FORBIDDEN = {chr(code) for code in (*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0))} | set(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
)


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("a\x1b[2Jb", "a[2Jb"),
        ("\x1b]52;c;SGk=\x07", "]52;c;SGk="),
        ("\x1b]8;;http://x\x1b\\link", "]8;;http://x\\link"),
        ("\x1bc\x9b31m\x90q\x9c", "c31mq"),
        ("one\r\ntwo\bX\x0b\x0c", "one\ntwoX"),
        ("\u202eevil\u2066x\u2069", "evilx"),
        ("a\u2028b", "a\nb"),
        ("\ud83d", "\ufffd"),
    ],
)
def test_what_a_terminal_obeys_goes(hostile: str, safe: str) -> None:
    assert safe_text(hostile) == safe


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_code_is_left_and_the_rest_can_be_written(text: str) -> None:
    safe = safe_text(text)
    assert not FORBIDDEN & set(safe)
    safe.encode()
    assert safe_text(safe) == safe


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_it_does_not_matter_where_text_is_cut(left: str, right: str) -> None:
    assert safe_text(left) + safe_text(right) == safe_text(left + right)


@given(st.text())
def test_other_text_is_left_alone(text: str) -> None:
    kept = "".join(
        character
        for character in text
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Zl", "Zp")
    )
    kept = "".join(character for character in kept if character not in FORBIDDEN)
    assert safe_text(kept) == kept


@pytest.mark.parametrize(
    "text", ["漢字かな", "👩‍👩‍👧‍👦 🇨🇭 e\u0301", "\u200f\u05e9\u05dc\u05d5\u05dd\u200e", "tab\there"]
)
def test_scripts_and_emoji_stay(text: str) -> None:
    assert safe_text(text) == text


def test_one_line_is_as_long_as_the_text() -> None:
    assert one_line("a\nb\tc\u2028d\x1b") == "a b c d"
