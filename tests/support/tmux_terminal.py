"""A program in a real terminal: tmux draws what it writes, types what a user would, and tells how it ended."""

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from terminal import SIZE

WAIT_S = 60.0


class TmuxTerminal:
    """Use as a context manager: the server of this one terminal, and what runs in it, ends with it."""

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str], *, width: int = 80, height: int = 24
    ) -> None:
        self._name = f"pinyon-test-{os.getpid()}-{secrets.token_hex(4)}"
        settings = folder / "tmux.conf"
        # tmux itself does not always learn how a program ended.
        self._exit_code = folder / f"{self._name}.code"
        run = f"{shlex.join(command)}; echo $? > {shlex.quote(str(self._exit_code))}"
        settings.write_text(
            "set -g remain-on-exit on\nset -g default-terminal tmux-256color\nset -g status off\nset -g escape-time 0\nset -g set-clipboard on\n"
        )
        self._start = [*("-u", "-f", str(settings), "new-session", "-d", "-x", str(width), "-y", str(height), run)]
        kept = (name for name in environment if not name.startswith("TMUX") and name not in SIZE)
        self._environment = {name: environment[name] for name in kept}
        self._environment["LC_ALL"] = "C.UTF-8"

    def __enter__(self) -> Self:
        self._tmux(*self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, Escape, C-q."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def buffer(self) -> str:
        """What was copied last."""
        return self._tmux("show-buffer")

    @property
    def exit_code(self) -> int | None:
        """None while the program runs; as a shell tells it."""
        code = self._exit_code.read_text() if self._exit_code.exists() else ""
        return int(code) if code else None

    @property
    def left_modes(self) -> dict[str, str]:
        """What a program may leave behind: the other screen, mouse reports."""
        names = ("alternate_on", "mouse_any_flag")
        return dict(zip(names, self._told(" ".join(f"#{{{name}}}" for name in names)).split(), strict=True))

    def until(self, shown: str | Callable[[str], bool]) -> str:
        """Wait until the screen shows this; return it."""
        is_shown = (lambda screen: shown in screen) if isinstance(shown, str) else shown
        deadline = time.monotonic() + WAIT_S
        while not is_shown(screen := self.screen):
            assert time.monotonic() < deadline, f"{shown!r} was not shown; the screen is\n{screen}"
            time.sleep(0.05)
        return screen

    def ended(self) -> int:
        """Wait for the end of the program; return its exit code."""
        deadline = time.monotonic() + WAIT_S
        while (code := self.exit_code) is None:
            assert time.monotonic() < deadline, f"the program did not end; the screen is\n{self.screen}"
            time.sleep(0.05)
        return code

    def _told(self, pattern: str) -> str:
        return self._tmux("display-message", "-p", pattern).strip()

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout
