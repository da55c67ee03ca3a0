"""What reaches a real terminal: no control code that came with a text."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "support" / "hostile_screen.py"
SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)|\x1b.|[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
    re.DOTALL,
)
WHERE_AND_HOW = re.compile(r"\x1b\[[\d;]*[mH]")  # the place and the colour of text: Textual's own, as many as it likes


def terminal_output(kind: str) -> str:
    """Return what the transcript writes to its terminal while it shows texts of this kind."""
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    output = b""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), kind], stdin=inside, stdout=inside, stderr=inside, env=environment
    ) as process:
        os.close(inside)
        try:
            while data := os.read(terminal, 65536):
                output += data
        except OSError:  # the other end has closed
            pass
    os.close(terminal)
    assert process.returncode == 0
    return output.decode()


def control_codes(text: str) -> set[str]:
    return {code for code in SEQUENCE.findall(text) if not WHERE_AND_HOW.fullmatch(code)}


def test_hostile_texts_send_the_terminal_nothing_that_harmless_ones_do_not() -> None:
    hostile, harmless = terminal_output("hostile"), terminal_output("harmless")
    assert "harmless 11" in harmless
    assert "]52;c;SGk=" in hostile
    assert control_codes(hostile) == control_codes(harmless)


def test_a_control_code_between_texts_is_found() -> None:
    assert control_codes("text\x1b[1;2H\x1b[0m\x1b]52;c;SGk=\x07\x9b") == {"\x1b]52;c;SGk=\x07", "\x9b"}
