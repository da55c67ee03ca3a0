"""A command in a pseudo-terminal of its own: keys in, everything that it writes out, and the modes that it leaves."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

MODES = ("1000", "1002", "1003", "1006", "1015", "1004", "2004", "1049")
"""Mouse, focus, paste and the other screen: whoever switches these on has to switch them off."""

SIZE = ("COLUMNS", "LINES")
"""Variables by which a program would believe in another size than the terminal has."""


class Terminal:
    """`written` grows while the command runs."""

    def __init__(self, process: subprocess.Popen[bytes], leader: int, modes_before: list[object]) -> None:
        self.process = process
        self.written = b""
        self._seen = 0
        self._leader = leader
        self._before = modes_before
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def types(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def waits_for(self, pattern: bytes, limit_s: float = 60) -> None:
        """Wait until something that this regular expression matches was written since the last wait."""
        self._until(lambda: re.search(pattern, self.written[self._seen :]) is not None, f"{pattern!r} came", limit_s)
        self._seen = len(self.written)

    def hangs_up(self) -> None:
        """Go away, as a terminal does whose window is closed."""
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), self._leader)
        self.process.send_signal(signal.SIGHUP)

    def ends(self, limit_s: float = 60) -> int:
        """Wait for the end of the command and of what it writes; return its exit code."""
        code = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return code

    @property
    def modes_left_on(self) -> list[str]:
        """The modes that were switched on later than off."""
        return [
            mode
            for mode in MODES
            if self.written.rfind(f"\x1b[?{mode}h".encode()) > self.written.rfind(f"\x1b[?{mode}l".encode())
        ]

    @property
    def is_as_before(self) -> bool:
        """Whether the line's settings are those that were there first."""
        return termios.tcgetattr(self._leader) == self._before

    def _until(self, condition, what: str, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            is_over = time.monotonic() > end or not self._reader.is_alive()
            assert not is_over or condition(), f"not within {limit_s} s: {what}; there is {self.written[-2000:]!r}"
            time.sleep(0.02)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            while data := os.read(self._leader, 65536):
                self.written += data


@contextlib.contextmanager
def terminal(
    command: Sequence[object], environment: Mapping[str, str], size: tuple[int, int] = (100, 30)
) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    before = termios.tcgetattr(leader)
    with subprocess.Popen(
        list(map(str, command)),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={"TERM": "xterm-256color"} | {name: environment[name] for name in environment if name not in SIZE},
        start_new_session=True,
    ) as process:
        os.close(follower)
        try:
            yield Terminal(process, leader, before)
        finally:
            process.kill()
            process.wait()
            os.close(leader)
