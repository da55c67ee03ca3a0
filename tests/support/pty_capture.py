"""What a program writes to its terminal, byte by byte, and which of it a terminal would obey."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

WAIT_S = 60.0
_SEQUENCE = re.compile(
    r"\x1b\].*?(?:\x07|\x1b\\)|\x1b[PX^_].*?\x1b\\|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b",
    re.DOTALL,
)
_STYLE_OR_PLACE = re.compile(r"\x1b\[[0-9;]*[mH]")
_USUAL_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")


def written(command: Sequence[str], environment: Mapping[str, str], steps: Sequence[tuple[str, bytes]]) -> str:
    """Run a program in a terminal of 120x40: each step waits for a text and then types; return all that was written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    capture = bytearray()
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            for awaited, typed in steps:
                _read_until(ours, capture, awaited.encode())
                os.write(ours, typed)
            _read_until(ours, capture, None)
            process.wait(WAIT_S)
        finally:
            process.kill()
            os.close(ours)
    return capture.decode("utf-8", "surrogateescape")


def obeyed(capture: str) -> set[str]:
    """Return the control sequences and control characters in a capture; styles and places with their usual numbers as 0."""
    return {
        _USUAL_NUMBER.sub("0", sequence) if _STYLE_OR_PLACE.fullmatch(sequence) else sequence
        for sequence in _SEQUENCE.findall(capture)
    }


def _read_until(terminal: int, capture: bytearray, awaited: bytes | None) -> None:
    """Read until a text has come since the last call, or the end of the program if that is None."""
    begin, deadline = len(capture), time.monotonic() + WAIT_S
    while awaited is None or awaited not in capture[begin:]:
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"{awaited!r} did not come after {bytes(capture[begin:][-2000:])!r}"
        if not select.select([terminal], [], [], left_s)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has ended
            data = b""
        if not data:
            assert awaited is None, f"the program ended without {awaited!r}: {bytes(capture[-2000:])!r}"
            return
        capture += data
