"""The chat on terminals that can do little: no crash, no traceback, and the terminal as it was before."""

import contextlib
import sys
from pathlib import Path

import msgspec
import pytest
import scripted_chat
from command_line import environment
from scripted_chat import Script
from terminal import Terminal, terminal

ANSWER = [
    "# Title\n\n",
    "1. one 漢字\n",
    "2. two\n\n",
    "```py\n",
    "x = 1\n",
    "```\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
    "end of it",
]
ESCAPE, HELP, GAUGES, THEME, UP = b"\x1b[27u", b"\x1bOP", b"\x1bOQ", b"\x1bOR", b"\x1b[A"  # an escape alone takes time
SIDEBAR, SEARCH, PALETTE, QUIT, MESSAGES = b"\x02", b"\x06", b"\x10", b"\x11", b"\x14"
PROMPT = b"ay somet"  # the cursor stands on the S
UTF8 = {"LC_ALL": "C.UTF-8"}
ASCII = {"LANG": "C", "LC_ALL": "C"}
ONLY_ASCII = {**ASCII, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # else Python takes UTF-8 there


def open_with(shown: Terminal, key: bytes, awaited: bytes) -> None:
    """Press a key until it acts: it does nothing while what was open before still closes."""
    for _ in range(60):
        shown.types(key)
        with contextlib.suppress(AssertionError):
            shown.waits_for(awaited, limit_s=0.5)
            return
    raise AssertionError(f"{key!r} did not bring {awaited!r}")


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({**UTF8, "TERM": "dumb"}, (80, 24)),
        ({**UTF8, "NO_COLOR": "1"}, (80, 24)),
        (UTF8, (20, 5)),
        (ASCII, (80, 24)),
        ({**ONLY_ASCII, "TERM": "dumb", "NO_COLOR": "1"}, (80, 24)),
    ],
    ids=["dumb", "no colour", "tiny", "ascii", "all"],
)
def test_a_chat_from_the_first_key_to_the_last(
    tmp_path: Path, variables: dict[str, str], size: tuple[int, int]
) -> None:
    file = tmp_path / "script.json"
    file.write_bytes(
        msgspec.json.encode(Script([ANSWER, ["second"]], thoughts="hm", pace_s=0.001, titles=["träume 漢字"]))
    )
    command = [sys.executable, scripted_chat.__file__, str(file)]
    left = {name: value for name, value in environment(tmp_path).items() if not name.startswith(("LC_", "LANG"))}
    with terminal(command, {**left, **variables}, size) as shown:
        shown.waits_for(PROMPT)
        shown.types("grüße 漢字\r".encode())
        shown.waits_for(b"tokens|tok/s")  # its foot, of which a small screen shows the end
        shown.types(MESSAGES + UP + SIDEBAR + SIDEBAR + GAUGES + GAUGES)
        for key, awaited in ((SEARCH, b"role:user"), (HELP, b"Keys"), (PALETTE, "▔".encode() + rb"|\\u2594")):
            open_with(shown, key, awaited)
            shown.types(ESCAPE)
        shown.types(THEME)
        shown.types(QUIT)
        assert shown.ends() == 0
        assert shown.is_as_before
    assert shown.modes_left_on == []
    assert b"Traceback" not in shown.written
