import asyncio
import os
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from pinyon.app.tui import path_picker
from pinyon.app.tui.path_picker import SHOWN, Choice, Choices, PathPicker, choices, mention


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("src/main.py", "src/Makefile", "src/a b.txt", "README.md", "notes/readme.txt", ".hidden", "main.c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "main.pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("@", ""),
        ("look at @src/ma", "src/ma"),
        ("line\n@~/x", "~/x"),
        ("me@example.org", None),
        ("@src and more", None),
        ("", None),
        ("@@a", "@a"),
    ],
)
def test_where_a_path_is_meant(text: str, typed: str | None) -> None:
    assert mention(text) == typed


@pytest.mark.parametrize(
    ("typed", "paths"),
    [
        ("", ["main.c", "notes/", "README.md", "src/"]),
        ("ma", ["main.c"]),
        ("READ", ["README.md"]),
        ("src/", ["src/a b.txt", "src/main.py", "src/Makefile"]),
        ("src/ma", ["src/main.py", "src/Makefile"]),
        ("src/e", ["src/Makefile"]),
        ("me", ["README.md"]),
        (".h", [".hidden"]),
        (".md", ["README.md"]),
        ("./no", ["./notes/"]),
        ("nowhere/", []),
        ("~nobody-of-that-name/", []),
        ("a\0/", []),
        ("README.md/", []),
    ],
)
def test_what_fits(base: Path, typed: str, paths: list[str]) -> None:
    assert [choice.path for choice in choices(typed, base).shown] == paths


def test_what_begins_with_the_word_comes_first(base: Path) -> None:
    (base / "a-main").touch()
    assert [choice.path for choice in choices("main", base).shown] == ["main.c", "a-main"]


def test_absolute_paths_and_the_home(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base))
    assert choices(f"{base}/src/main", Path("/")).shown == (Choice(f"{base}/src/main.py"),)
    assert choices("~/READ", Path("/")).shown == (Choice("~/README.md"),)


def test_a_large_folder_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(SHOWN + 7):
        (tmp_path / f"f{number:03}").touch()
    found = choices("f", tmp_path)
    assert (len(found.shown), found.shown[0], found.more) == (SHOWN, Choice("f000"), 7)


class Prompt(App[None]):
    def __init__(self, base: Path) -> None:
        super().__init__()
        self.picker = PathPicker(base)
        self.picked: list[Choice] = []

    def compose(self) -> ComposeResult:
        yield self.picker

    def on_path_picker_picked(self, event: PathPicker.Picked) -> None:
        self.picked.append(event.choice)


async def test_keys_move_and_take(base: Path) -> None:
    app = Prompt(base)
    async with app.run_test(size=(80, 24)) as pilot:
        picker = app.picker
        assert (picker.is_open, picker.choice) == (False, None)
        await picker.look_up("see @src/")
        assert (picker.is_open, picker.choice) == (True, Choice("src/a b.txt"))
        picker.move(1)
        assert picker.choice == Choice("src/main.py")
        picker.move(-1)
        picker.move(-1)
        assert picker.choice == Choice("src/Makefile")
        await picker.look_up("see @no")
        assert picker.choice == Choice("notes/")
        assert picker.choice.is_folder
        await pilot.pause()
        await picker.look_up("see @no such")
        assert (picker.is_open, picker.choice) == (False, None)
        await picker.look_up("@")
        picker.close()
        assert (picker.is_open, picker.choice) == (False, None)


async def test_a_click_takes(base: Path) -> None:
    app = Prompt(base)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.picker.look_up("@src/")
        await pilot.pause()
        await pilot.click(app.picker, offset=(3, 2))
        await pilot.pause()
        assert app.picked == [Choice("src/Makefile")]


async def test_a_slow_folder_does_not_overwrite_what_was_typed_since(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    go_on = threading.Event()

    def slow(typed: str, _base: Path) -> Choices:
        if typed == "s":
            go_on.wait(5)
        return Choices((Choice(typed),))

    monkeypatch.setattr(path_picker, "choices", slow)
    app = Prompt(base)
    async with app.run_test(size=(80, 24)):
        first = asyncio.create_task(app.picker.look_up("@s"))
        await asyncio.sleep(0)
        await app.picker.look_up("@sr")
        go_on.set()
        await first
        assert app.picker.choice == Choice("sr")


async def test_names_are_shown_literally(base: Path) -> None:
    (base / "[@click=app.quit]x[").touch()
    (base / "odd\x1b[2J\n[b].txt").touch()
    (base / os.fsdecode(b"bad\xff")).touch()
    app = Prompt(base)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.picker.look_up("@")
        await pilot.pause()
        shown = [app.picker.render_line(y).text for y in range(app.picker.size.height)]
        assert any("[@click=app.quit]x[" in line for line in shown)
        assert not any({"\x1b", "\n"} & set(line) for line in shown)
