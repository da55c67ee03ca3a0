"""Nothing that other people wrote drives the terminal; into pipes it goes as it is."""

import sys
from pathlib import Path

import pytest

from pinyon.app.cli.terminal import for_stdout, print_json, printable

HOSTILE = "a\x00\x1b[2J\x07\r\x7f\x9b2J\x85\u202eb\u2066c"


def test_what_a_terminal_would_obey_becomes_a_sign():
    assert printable(HOSTILE) == "a\u2400\u241b[2J\u2407\u240d\u2421\ufffd2J\ufffd\ufffdb\ufffdc"
    harmless = "line\n\ttab 👩\u200d🔬 \u0645\u06cc\u200c\u062e\u0648 e\u0301 \u05d0"
    assert printable(harmless) == harmless


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_gets_signs(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert for_stdout(HOSTILE) == (printable(HOSTILE) if is_terminal else HOSTILE)
    print_json({"text": "\x9b2J", "path": Path("/a\udcff")})
    sign = "\ufffd" if is_terminal else "\x9b"
    assert capsys.readouterr().out == f'{{"text":"{sign}2J","path":"/a\\\\udcff"}}\n'
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    print_json("\x9b2J", sys.stderr)
    assert capsys.readouterr() == ("", f'"{sign}2J"\n')
