import os
import shlex
from pathlib import Path

import pytest

from pinyon.app.tui.dropped import MAX_CHARS, dropped_paths


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    plain, odd = tmp_path / "plain.txt", tmp_path / "my 'odd' [b] ü.txt"
    plain.touch()
    odd.touch()
    return plain, odd


def test_bare_quoted_escaped_or_as_urls(files: tuple[Path, Path]) -> None:
    plain, odd = files
    escaped = "".join(f"\\{char}" if char in " '[]" else char for char in str(odd))
    assert dropped_paths(str(plain)) == (plain,)
    assert dropped_paths(f"{shlex.quote(str(odd))} ") == (odd,)
    assert dropped_paths(f"{escaped} {plain}\n") == (odd, plain)
    assert dropped_paths(f"{plain.as_uri()}\r\n{odd.as_uri()}") == (plain, odd)
    assert dropped_paths(str(odd)) == (odd,)
    assert dropped_paths(str(plain.parent)) == (plain.parent,)


def test_text_that_only_begins_like_a_path_is_text(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = files
    monkeypatch.chdir(plain.parent)
    for text in (
        "",
        f"{plain} says what?",
        "plain.txt",  # relative: a word like any other
        "/help",
        "'not closed",
        "~nobody-of-that-name/x",
        "/" + "x" * 5000,
        "/a\0b",
        f"{plain} " * (MAX_CHARS // len(str(plain)) + 1),
    ):
        assert dropped_paths(text) == (), text[:40]


def test_what_may_never_end_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert dropped_paths(str(tmp_path / "pipe")) == ()
    assert dropped_paths("/dev/zero") == ()
