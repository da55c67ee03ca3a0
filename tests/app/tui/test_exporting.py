import contextlib
from pathlib import Path

import pytest

from pinyon.app.errors import UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Role
from pinyon.app.tui.exporting import export_to, suggested_name


@pytest.fixture
def talk():
    with contextlib.closing(History.in_memory()) as history:
        conversation = history.start(title="jays", model="fake")
        first = history.add(conversation.id, None, Role.USER, "Hello")
        history.add(conversation.id, first.id, Role.ASSISTANT, "Aye.", reasoning="hmm")
        yield history.conversation(conversation.id), history.tree(conversation.id).path()


@pytest.mark.parametrize("suffix", [".md", ".jsonl", ".html", ".HTML"])
def test_the_name_chooses_the_format_and_thoughts_are_left_out(tmp_path, talk, suffix):
    file = tmp_path / f"talk{suffix}"
    export_to(file, *talk, reasoning=False)
    assert "Aye." in file.read_text()
    assert "hmm" not in file.read_text()


def test_thoughts_come_along_where_they_are_asked_for(tmp_path, talk):
    export_to(tmp_path / "talk.md", *talk, reasoning=True)
    assert "hmm" in (tmp_path / "talk.md").read_text()


def test_nothing_is_written_over(tmp_path, talk):
    file = tmp_path / "talk.md"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        export_to(file, *talk, reasoning=False)
    assert file.read_text() == "mine"


def test_a_name_without_a_known_format_is_refused(tmp_path, talk):
    with pytest.raises(UsageError, match=r"\.md, \.jsonl, \.html"):
        export_to(tmp_path / "talk.pdf", *talk, reasoning=False)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("What's a jay?", "what-s-a-jay.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("", "conversation.md"),
        ("日本", "日本.md"),
    ],
)
def test_a_name_from_a_title(title, name):
    assert suggested_name(title) == name


def test_what_cannot_be_written_is_told_in_words(tmp_path, talk):
    (tmp_path / "file").touch()
    for name, reason in ((tmp_path / "no" / "talk.md", "No such file"), (tmp_path / "file" / "talk.md", "Not a dir")):
        with pytest.raises(UsageError, match=rf"^{name} cannot be written: {reason}"):
            export_to(name, *talk, reasoning=False)
    with pytest.raises(UsageError, match=r"~nobody-here/talk\.md cannot be written: No such file"):
        export_to(Path("~nobody-here/talk.md"), *talk, reasoning=False)
