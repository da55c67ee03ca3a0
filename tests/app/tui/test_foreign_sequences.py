"""No escape sequence out of foreign text reaches the terminal: the chat in a pseudo-terminal, every byte looked at."""

import sys
from pathlib import Path

import msgspec
import pytest
import scripted_chat
from command_line import environment
from pty_capture import obeyed, written
from scripted_chat import Script

HOSTILE = (
    "\x1b]52;c;UFdORUQ=\x07 \x1b]8;;http://pwned\x1b\\link\x1b]8;;\x1b\\ \x1b]0;pwned\x07 \x1b[31337;31337H \x1b[31337m \x1bc"
    " \x1bP+q31337\x1b\\ \x9b31337J \x9d0;pwned\x9c \x07\x08\x7f\x00 \u202epwned\u202c \u2066pwned\u2069 \x1b[?31337h \x1b"
)
QUIT = b"\x11"


def capture(folder: Path, *, foreign: str) -> str:
    """The chat with this text in everything that others write: answers whole and in pieces, thoughts, titles, names, errors."""
    answer = [
        "first ",
        f"```{foreign}\n",
        foreign,
        *foreign,
        "\n```\n\n# ",
        foreign,
        "\n\n| a |\n|---|\n| ",
        foreign,
        " |\n\nlast",
    ]
    script = Script(
        [answer],
        thoughts=foreign,
        model=f"model{foreign}",
        titles=[f"title{foreign}"],
        failure=f"failure{foreign}",
        pace_s=0.001,
    )
    (folder / "script.json").write_bytes(msgspec.json.encode(script))
    command = [sys.executable, str(Path(scripted_chat.__file__)), str(folder / "script.json")]
    steps = [("model", b"hello\r"), ("last", b"again\r"), ("failure", QUIT)]
    return written(command, environment(folder), steps)


def test_foreign_text_brings_no_sequence_that_harmless_text_does_not(tmp_path: Path) -> None:
    harmless = obeyed(capture(tmp_path, foreign="harmless"))
    assert "\x1b[?1049h" in harmless  # the chat's own are seen
    hostile = capture(tmp_path, foreign=HOSTILE)
    assert obeyed(hostile) - harmless == set()
    assert "[31337;31337H" in hostile  # what is left of it is text


@pytest.mark.parametrize("planted", HOSTILE.split(" "))
def test_each_of_them_would_be_found(planted: str) -> None:
    usual = "\x1b[?1049h\x1b[1;31mtext\x1b[12;40Hmore\r\n"
    assert obeyed(usual + planted) - obeyed(usual)
