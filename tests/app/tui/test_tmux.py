"""The chat in a real terminal: tmux types, draws and is resized; what a user sees is what is compared."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import scripted_chat
from command_line import PINYON, environment, pinyon
from scripted_chat import Script
from tmux_terminal import TmuxTerminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux, which draws the terminal, is not installed")

LONG = [f"word-{number} " for number in range(2000)]
ODD = "[/INST] [0] [bold [/ a[b + [@click=app.quit]x[/] 漢字 é 🌲 שלום"


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., TmuxTerminal]:
    """The chat with a model that says these answers."""

    def start(*answers: list[str], **more: object) -> TmuxTerminal:
        file = tmp_path / "script.json"
        file.write_bytes(msgspec.json.encode(Script([*answers], **more)))
        variables = {name: value for name, value in environment(tmp_path).items() if "DISPLAY" not in name}
        return TmuxTerminal(tmp_path, [sys.executable, scripted_chat.__file__, str(file)], variables)

    return start


def say(terminal: TmuxTerminal, text: str) -> None:
    terminal.until("Say something")
    terminal.type(text)
    terminal.press("Enter")


def test_type_stream_cancel_resize_search_quit(scripted: Callable[..., TmuxTerminal]) -> None:
    with scripted(LONG, ["second ", "answer"]) as terminal:
        say(terminal, "a long tale about pinyons")
        terminal.until("word-10 ")
        terminal.press("Escape")
        terminal.until("stopped")  # a letter right behind an escape would be Alt and that letter
        say(terminal, "and another question")
        screen = terminal.until(lambda screen: "second answer" in screen and screen.count("tok/s") == 2)
        assert "a long tale about pinyons" in screen
        assert "word-1999" not in screen

        for width, height in ((40, 12), (200, 60), (61, 15), (20, 6), (120, 40)):
            terminal.resize(width, height)
        terminal.until(
            lambda screen: len(screen.splitlines()) == 40 and "f1 Help" in screen and "second answer" in screen
        )

        terminal.press("C-n")
        terminal.until(lambda screen: "second answer" not in screen)
        terminal.press("C-f")
        terminal.until("Search all conversations")
        terminal.type("tale pinyon")
        terminal.until("a long tale about")
        terminal.press("Enter")
        terminal.until("word-1 word-2")

        terminal.press("C-q")
        assert terminal.ended() == 0
        assert terminal.left_modes == {"alternate_on": "0", "mouse_any_flag": "0"}


@pytest.mark.parametrize("keys", [("C-q",), ("C-c", "C-c")])
def test_it_can_be_left_while_an_answer_streams(scripted: Callable[..., TmuxTerminal], keys: tuple[str, ...]) -> None:
    with scripted(LONG) as terminal:
        say(terminal, "go on and on")
        terminal.until("word-3 ")
        terminal.press(*keys)
        assert terminal.ended() == 0
        assert terminal.left_modes == {"alternate_on": "0", "mouse_any_flag": "0"}


def test_brackets_and_wide_letters_are_shown_as_they_are(scripted: Callable[..., TmuxTerminal]) -> None:
    with scripted([ODD], model="m[/bad].gguf", failure=f"failed: {ODD}") as terminal:
        terminal.until("m[/bad].gguf")
        say(terminal, ODD)
        terminal.until(
            lambda screen: screen.count("[/INST] [0] [bold [/ a[b + [@click=app.quit]x[/] 漢字") == 3
        )  # title, question, answer
        say(terminal, "again")
        terminal.until("failed: [/INST] [0] [bold [/")
        assert terminal.exit_code is None


def test_a_copy_reaches_the_clipboard_through_tmux(scripted: Callable[..., TmuxTerminal]) -> None:
    with scripted(["what is ", "copied: 漢字"]) as terminal:
        say(terminal, "a question")
        terminal.until("copied: 漢字")
        say(terminal, "/copy")
        terminal.until("OSC 52")
        assert terminal.buffer == "what is copied: 漢字"


@pytest.mark.model
def test_the_command_with_a_real_model(tmp_path: Path, smollm2: Path) -> None:
    pinyon(tmp_path, "add", smollm2, "--name", "small", check=True)
    with TmuxTerminal(tmp_path, [*PINYON, "chat", "small", "--context", "512"], environment(tmp_path)) as terminal:
        say(terminal, "/params max_tokens=8")
        terminal.until("chosen: max_tokens=8")
        terminal.press("Escape")
        terminal.until(lambda screen: "chosen" not in screen)
        say(terminal, "Say hello.")
        terminal.until("tok/s")
        terminal.press("C-q")
        assert terminal.ended() == 0
    listed = json.loads(pinyon(tmp_path, "logs", "list", "--json", check=True).stdout)
    assert [conversation["title"] for conversation in listed] == ["Say hello."]
