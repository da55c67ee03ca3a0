"""What is about to be said: as one text, and taken apart again."""

import pytest

from pinyon.app.errors import UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Attached, Role
from pinyon.app.tui.draft import Draft, Piece, without_mentions

CODE = Piece("a.py", "a.py\n```python\nx = 1\n\n\n```", 8, 7)
NOTES = Piece("notes, 2 files, 1 left out", "b.md\n```\n\n```\n\nc.md\n````\n```\n````", 3, None, ("d (a program)",))


def said(draft):
    """What the history keeps of a draft."""
    history = History.in_memory()
    conversation = history.start(title=draft.title, model="")
    message = history.add(conversation.id, None, Role.USER, draft.text, attached=draft.attached)
    history.close()
    return message


@pytest.mark.parametrize("pieces", [(), (CODE,), (CODE, NOTES), (NOTES, CODE)])
@pytest.mark.parametrize("typed", ["", "What is it?", "\n\n  What?\n\n", "a.py\n```python\nx = 1\n```"])
def test_what_was_said_comes_apart_again(pieces, typed):
    message = said(Draft(typed, pieces))
    assert message.attached_texts == tuple(piece.text for piece in pieces)
    assert message.typed == typed
    assert Draft.of(message).typed == typed
    assert [(each.label, each.text, each.size_bytes, each.tokens) for each in Draft.of(message).pieces] == [
        (each.label, each.text, each.size_bytes, each.tokens) for each in pieces
    ]
    assert said(Draft.of(message)).text == message.text


def test_what_is_attached_stands_first_each_followed_by_an_empty_line():
    assert Draft("What?", (CODE, NOTES)).text == f"{CODE.text}\n\n{NOTES.text}\n\nWhat?"
    assert Draft("", (CODE,)).text == CODE.text


def test_a_message_of_an_earlier_version_is_all_words():
    history = History.in_memory()
    conversation = history.start(title="", model="")
    attached = (Attached("a.py", 8, 7), Attached("b.md", 3, 0))
    message = history.add(conversation.id, None, Role.USER, "a.py\n\nb.md\n\nWhat?", attached=attached)
    history.close()
    assert (message.typed, message.attached_texts) == (message.text, ("", ""))
    assert Draft.of(message) == Draft(message.text)


def test_a_paste_has_the_line_ends_of_files():
    pasted = Piece.of_paste("a\rb\r\nc\n")
    assert pasted == Piece("pasted, 3 lines", "pasted text\n```\na\nb\nc\n```", 6)


def test_a_source_is_a_path_as_people_write_it_or_a_url(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setenv("HOME", str(tmp_path))
    piece = Piece.of_source("~/a.txt", urls=False)
    assert (piece.label, piece.text) == ("~/a.txt", f"{tmp_path}/a.txt\n```text\na\n```")
    with pytest.raises(UsageError, match="https://pinyon/a is not fetched"):
        Piece.of_source("https://pinyon/a", urls=False)


@pytest.mark.parametrize(
    ("draft", "is_empty"), [(Draft(" \n"), True), (Draft("x"), False), (Draft("", (CODE,)), False)]
)
def test_nothing_to_say(draft, is_empty):
    assert draft.is_empty is is_empty


def test_what_is_named_behind_an_at_is_taken_out_where_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.py").touch()
    (tmp_path / "src").mkdir()
    assert without_mentions("compare @a.py with @src/ please") == ("compare with please", ("a.py", "src/"))
    assert without_mentions("what is in @a.py?") == ("what is in ?", ("a.py",))
    assert without_mentions("@~/a.py") == ("", ("~/a.py",))
    assert without_mentions("@a.py\n@a.py\n") == ("", ("a.py",))
    for text in ("@b.py  is not there ", "me@a.py", "@", "@@a.py", "@a.py\0", "@" + "x" * 5000):
        assert without_mentions(text) == (text, ())
