import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.app.history.history import History
from pinyon.app.history.records import Role
from pinyon.app.history.words import Marks, query


@pytest.fixture(scope="module")
def world():
    """One history in memory, and one on disk: the same texts."""
    return [
        "The quick brown fox jumps over the lazy dog.",
        "naïve Müller trinkt Kaffee",
        "我喜欢喝绿茶。不喜欢咖啡",
        "東京タワーへ行きたい",
        "สวัสดีชาวโลก",
        "C++ and C# and foo_bar(baz) AND NOT near/2 OR ^x",
        "x" * 5000 + " needle " + "y" * 5000,
        'he said "hello world" twice',
    ]


@pytest.fixture(scope="module", params=["memory", "disk"])
def found_in(request, world, tmp_path_factory):
    path = None if request.param == "memory" else tmp_path_factory.mktemp("words") / "history.db"
    history = History(path)
    name = history.start(title="", model="").id
    numbers = {history.add(name, None, Role.USER, text).id: number for number, text in enumerate(world)}
    history.flush()
    yield lambda words: sorted(numbers[each.message] for each in history.search(words))
    history.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fox", [0]),
        ("FOX quick", [0]),
        ("fox coffee", []),
        ("jum", [0]),
        ("jum ", []),
        ("j", []),
        ("x", [5]),
        ("brown fox", [0]),
        ('"fox brown"', []),
        ('"hello world"', [7]),
        ('"hello world', [7]),
        ("naive muller", [1]),
        ("绿茶", [2]),
        ("喜欢", [2]),
        ("茶绿", []),
        ("タワー", [3]),
        ("ชาวโลก", [4]),
        ("C++", [5]),
        ("foo_bar(", [5]),
        ("near/2", [5]),
        ("needle", [6]),
        ("NOT", [5]),
        ("text:fox", []),
        ("^quick", [0]),
        ("quick -- fox", [0]),
        ("*", []),
        ('"', []),
        ('""', []),
        ("", []),
        (" \n", []),
        ("\0", []),
        ("fox\0", [0]),
        ("\ud800fox", [0]),
        ("😀", []),
    ],
)
def test_words_find(found_in, words, expected):
    assert found_in(words) == expected


@given(st.text(max_size=60))
def test_any_input_is_only_words(any_history, words):
    for each in any_history.search(words):
        assert all(0 <= start < end <= len(each.snippet) for start, end in each.matches)


@given(st.text(alphabet="ab\"*(){}:^+-~\0\\'%_ \u0301\u4e2d", max_size=30))
def test_any_operator_is_only_words(any_history, words):
    any_history.search(words)


@given(st.text(max_size=200), st.integers(0, 200))
def test_a_word_of_a_text_finds_it(text, choice):
    parts = "".join(char if unicodedata.category(char)[0] in "LNMC" else " " for char in text).split()
    words = [part for part in parts if part.isascii() and part.isalnum()]
    if not words:
        return
    history = History.in_memory()
    name = history.start(title="", model="").id
    number = history.add(name, None, Role.USER, text).id
    for words_asked in (words[choice % len(words)], " ".join(words), words[choice % len(words)][:2]):
        (found,) = history.search(words_asked)
        assert found.message == number
        assert found.matches


@pytest.fixture(scope="module")
def any_history():
    history = History.in_memory()
    name = history.start(title="a", model="b").id
    for text in ("a b ab", 'a"b', "中 a", "b:a", "a\x1fb <b>"):
        history.add(name, None, Role.USER, text)
    return history


def test_a_snippet_is_one_line_with_the_places_of_the_words(any_history):
    history = History.in_memory()
    name = history.start(title="", model="").id
    history.add(name, None, Role.USER, "one\ntwo\t<b>three</b> 我喝绿茶\nfour")
    (found,) = history.search("two 绿茶 fou")
    assert "\n" not in found.snippet
    assert [found.snippet[start:end] for start, end in found.matches] == ["two", "绿茶", "four"]


def test_a_text_cannot_forge_a_mark():
    marks = Marks.new()
    assert marks != Marks.new()
    other = Marks.new()
    assert marks.read(f"{other.begin}a{other.end}{marks.begin}b{marks.end}") == (
        f"{other.begin}a{other.end}b",
        ((len(other.begin) + 1 + len(other.end), len(other.begin) + 2 + len(other.end)),),
    )


def test_only_so_many_words_count():
    assert query("a " * 1000).count('"a"') == 32
