"""Copying: with the desktop's own tool where this process sits on the desktop, else through the terminal (OSC 52)."""

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from pinyon.app.tui.safe_text import safe_text

_TOOL_TIMEOUT_S: Final = 2.0

Run = Callable[[tuple[str, ...], bytes], bool]
"""Give a command these bytes; whether it took them."""


async def copy(
    text: str,
    write: Callable[[str], object],
    environment: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    run: Run | None = None,
) -> str:
    """Put text, without its control characters, into the user's clipboard; return in words where it went.

    `write` takes what is meant for the terminal itself. Whether a terminal obeys OSC 52 cannot be known.
    """
    text = safe_text(text)
    if (tool := _tool(environment, platform)) is not None:
        taken = await asyncio.to_thread(run or _run, tool, text.encode("utf-8", "replace"))
        if taken:
            return "copied to the clipboard"
    write(osc52(text, in_tmux="TMUX" in environment))
    return "copied through the terminal, if it allows that (OSC 52)"


def osc52(text: str, *, in_tmux: bool) -> str:
    """Return the sequence that asks a terminal to set its clipboard (xterm's control sequences, OSC 52).

    tmux hands it on where `allow-passthrough` is on, and takes it itself where `set-clipboard` is: so it gets both.
    """
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode('utf-8', 'replace')).decode()}\x07"
    if not in_tmux:
        return sequence
    doubled = sequence.replace("\x1b", "\x1b\x1b")
    return f"{sequence}\x1bPtmux;{doubled}\x1b\\"


def _tool(environment: Mapping[str, str], platform: str) -> tuple[str, ...] | None:
    """Return the command that sets the clipboard in front of the user; over ssh there is none: the desktop is elsewhere."""
    if "SSH_CONNECTION" in environment or "SSH_TTY" in environment:
        return None
    tools: list[tuple[str, ...]] = []
    if platform == "darwin":
        tools.append(("pbcopy",))
    if "WAYLAND_DISPLAY" in environment:
        tools.append(("wl-copy",))
    if "DISPLAY" in environment:
        tools.append(("xclip", "-selection", "clipboard"))
    return next((tool for tool in tools if shutil.which(tool[0], path=environment.get("PATH"))), None)


def _run(command: tuple[str, ...], data: bytes) -> bool:
    # xclip and wl-copy stay behind to serve the clipboard: a pipe from them would never end.
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, input=data, stdout=quiet, stderr=quiet, timeout=_TOOL_TIMEOUT_S, check=False)
        return done.returncode == 0
    return False
