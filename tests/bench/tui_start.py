"""From the shell to the first frame: `pinyon chat` in a fresh process on a pseudo-terminal, beside a Textual app that shows a line of text.

`first_frame_s` ends when the prompt's placeholder is on the screen; `model_s` when the model has been loaded, and the title
names it. Runs alternate; each figure is the median of its runs.
"""

import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import finish, parse_arguments, say

SIZE = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
PLACEHOLDER, NAME = b"ay something", b"benched"
LIMIT_S = 30.0
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("Say something")
Bare().run()
"""


def shown_after_s(command: tuple[str, ...], home: str, *texts: bytes) -> list[float]:
    """Return seconds from the command's start until each of the texts was on its terminal; then end it."""
    leader, follower = pty.openpty()
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, **SIZE, "PINYON_HOME": home},
        start_new_session=True,
    ) as process:
        os.close(follower)
        written, times = b"", []
        try:
            while len(times) < len(texts):
                left_s = started + LIMIT_S - time.perf_counter()
                if left_s <= 0 or not select.select([leader], [], [], left_s)[0]:
                    raise SystemExit(f"invalid run: not within {LIMIT_S} s; there is {written[-500:]!r}")
                written += os.read(leader, 1 << 16)
                while len(times) < len(texts) and texts[len(times)] in written:
                    times.append(time.perf_counter() - started)
        finally:
            process.terminate()
            while select.select([leader], [], [], 0.1)[0] or process.poll() is None:  # it must be able to write its end
                try:
                    os.read(leader, 1 << 16)
                except OSError:
                    break
            os.close(leader)
    return times


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=9)
    chat = (sys.executable, "-m", "pinyon", "chat", "benched")
    frames, models, bare = [], [], []
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            (sys.executable, "-m", "pinyon", "add", arguments.model, "--name", "benched"),
            check=True,
            env={**os.environ, "PINYON_HOME": home},
            stdout=subprocess.DEVNULL,
        )
        for turn in range(arguments.rounds + 1):
            frame_s, model_s = shown_after_s(chat, home, PLACEHOLDER, NAME)
            (bare_s,) = shown_after_s((sys.executable, "-c", BARE), home, PLACEHOLDER)
            if turn:  # the first pair warms the page cache
                frames.append(frame_s)
                models.append(model_s)
                bare.append(bare_s)
                say(f"first frame {frame_s:.3f} s, model {model_s:.3f} s; a bare app {bare_s:.3f} s")
    quartiles = statistics.quantiles(frames, n=4)
    finish(
        {
            "model": Path(arguments.model).name,
            "first_frame_s": round(statistics.median(frames), 3),
            "first_frame_noise_s": round(quartiles[2] - quartiles[0], 3),
            "model_s": round(statistics.median(models), 3),
            "bare_textual_s": round(statistics.median(bare), 3),
        }
    )


if __name__ == "__main__":
    main()
