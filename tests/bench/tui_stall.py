"""The terminal chat while long answers stream: the longest gap of the event loop, its share of a core, and memory.

Each answer has 10,000 tokens at 100 tokens/s: one fence, one list, one table, prose. The transcript runs in a pseudo-terminal of its own
process, below 200 earlier messages, at its end and following. The gap is the maximum, and covers the answer's end and a resize of the
window. `max_loop_cpu_ms` is the most CPU time that the loop's own thread used in one gap: it tells a stall of the chat from one that others
on the machine caused. Memory is what the second half of the answer adds.
"""

import argparse
import asyncio
import fcntl
import gc
import json
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from common import finish, say
from textual.app import App, ComposeResult

from pinyon.app.history.records import Role, State
from pinyon.app.tui.shown import Shown
from pinyon.app.tui.transcript import Transcript

SIZE = (40, 120)
EARLIER_MESSAGES = 200
CHARACTERS_A_TOKEN = 4
TICK_S = 0.005
WORDS = "the model reads every token of a prompt once and keeps what it has computed for whoever asks again".split()


def prose(chosen: random.Random, words: int) -> str:
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def paragraphs(chosen: random.Random) -> Iterator[str]:
    while True:
        yield f"## {prose(chosen, 4)}\n\n{prose(chosen, 60)} **{prose(chosen, 3)}** and `{prose(chosen, 1)}`.\n\n"


def fence(chosen: random.Random) -> Iterator[str]:
    yield "Here it is:\n\n```python\n"
    while True:
        name, other = chosen.choice(WORDS), chosen.choice(WORDS)
        yield f'def {name}(self, {other}: int) -> str:\n    """{prose(chosen, 6)}"""\n    return f"{{{other}:>10}} {prose(chosen, 3)}"  # {other}\n\n\n'


def items(chosen: random.Random) -> Iterator[str]:
    for number in range(1, 100_000):
        yield f"{number}. **{prose(chosen, 2)}**: {prose(chosen, 14)}\n   - {prose(chosen, 5)}\n"


def table(chosen: random.Random) -> Iterator[str]:
    yield "| name | what | figure | remark |\n|---|---|---:|---|\n"
    while True:
        yield f"| {prose(chosen, 2)} | `{prose(chosen, 1)}` | {chosen.randrange(10**6)} | {prose(chosen, 6)} |\n"


ANSWERS = {"fence": fence, "list": items, "table": table, "prose": paragraphs}


def answer_tokens(kind: str, tokens: int) -> list[str]:
    """Return an answer in pieces of a token. A fence is closed before the end, so that its end is seen."""
    text = ""
    for part in ANSWERS[kind](random.Random(kind)):
        text += part
        if len(text) > tokens * CHARACTERS_A_TOKEN:
            break
    text += "```\n\nDone.\n" if kind == "fence" else "\n\nDone.\n"
    return [text[start : start + CHARACTERS_A_TOKEN] for start in range(0, len(text), CHARACTERS_A_TOKEN)]


class Gap(NamedTuple):
    """How long the loop was not there, when, and the CPU time that its thread had meanwhile."""

    gap_s: float
    at_s: float
    cpu_s: float


class Bench(App[None]):
    """Streams one answer, and measures."""

    def __init__(self, kind: str, tokens: int, rate: float, result: Path) -> None:
        super().__init__()
        self.kind = kind
        self.pieces = answer_tokens(kind, tokens)
        self.rate = rate
        self.result = result
        self.longest = Gap(0.0, 0.0, 0.0)
        self.most_cpu_s = 0.0

    def compose(self) -> ComposeResult:
        yield Transcript()

    def on_mount(self) -> None:
        self.run_worker(self.measure())

    async def watch_gaps(self, started: float) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            gap = Gap(time.perf_counter() - before - TICK_S, before - started, time.thread_time() - cpu)
            self.longest = max(self.longest, gap)
            self.most_cpu_s = max(self.most_cpu_s, gap.cpu_s)

    async def measure(self) -> None:
        transcript = self.query_one(Transcript)
        chosen = random.Random(1)
        roles = (Role.USER, Role.ASSISTANT)
        await transcript.show(
            [
                Shown(number + 1, roles[number % 2], "".join(next(paragraphs(chosen)) for _ in range(2)))
                for number in range(EARLIER_MESSAGES)
            ]
        )
        await transcript.settled()
        await asyncio.sleep(1)
        process = psutil.Process()
        started, cpu = time.perf_counter(), time.process_time()
        watch = asyncio.create_task(self.watch_gaps(started))
        answer = Shown(EARLIER_MESSAGES + 1, Role.ASSISTANT, state=State.STREAMING)
        transcript.begin(answer)
        half_rss = 0
        for number, piece in enumerate(self.pieces):
            await asyncio.sleep(max(0.0, started + number / self.rate - time.perf_counter()))
            transcript.append(piece)
            if number == len(self.pieces) // 2:
                half_rss = process.memory_info().rss
        streamed_s = time.perf_counter() - started
        streamed_cpu = time.process_time() - cpu
        end_rss = process.memory_info().rss
        transcript.finish(Shown(answer.id, Role.ASSISTANT, "".join(self.pieces), footer="100.0 tok/s"))
        await transcript.settled()
        await asyncio.sleep(1)
        os.kill(os.getppid(), signal.SIGUSR1)  # resizes the terminal
        await asyncio.sleep(3)
        await transcript.settled()
        watch.cancel()
        self.result.write_text(
            json.dumps(
                {
                    "max_stall_ms": round(1000 * self.longest.gap_s, 1),
                    "stalled_at_s": round(self.longest.at_s, 1),
                    "stall_loop_cpu_ms": round(1000 * self.longest.cpu_s, 1),
                    "max_loop_cpu_ms": round(1000 * self.most_cpu_s, 1),
                    "cpu_percent": round(100 * streamed_cpu / streamed_s, 1),
                    "tokens_per_s": round(len(self.pieces) / streamed_s, 1),
                    "second_half_mib": round((end_rss - half_rss) / 2**20, 1),
                    "rss_mib": round(end_rss / 2**20, 1),
                }
            ),
            encoding="utf-8",
        )
        self.exit()


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def in_terminal(kind: str, arguments: argparse.Namespace, result: Path) -> dict[str, float]:
    """Run one answer in a process with a terminal of its own, of which everything is read."""
    terminal, inside = pty.openpty()
    resize(terminal, *SIZE)
    command = [
        sys.executable,
        __file__,
        "--inside",
        kind,
        "--tokens",
        str(arguments.tokens),
        "--rate",
        str(arguments.rate),
        "--result",
        str(result),
    ]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    ) as process:
        os.close(inside)
        signal.signal(
            signal.SIGUSR1, lambda *_: (resize(terminal, SIZE[0], SIZE[1] - 30), process.send_signal(signal.SIGWINCH))
        )
        output: list[bytes] = []

        def drain() -> None:
            try:
                while data := os.read(terminal, 65536):
                    output[:] = [data]
            except OSError:  # the other end has closed
                pass

        reader = threading.Thread(target=drain)
        reader.start()
        process.wait()
        reader.join()
    os.close(terminal)
    if not result.exists():
        raise SystemExit(f"invalid run: no result, and last {output[-1:]!r}")
    measured: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    if measured["tokens_per_s"] < 0.95 * arguments.rate:
        raise SystemExit(f"invalid run: {measured['tokens_per_s']} tokens/s instead of {arguments.rate}")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens per second")
    parser.add_argument("--answers", nargs="+", choices=ANSWERS, default=list(ANSWERS))
    parser.add_argument("--inside", choices=ANSWERS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        gc.freeze()  # as `pinyon chat` does
        Bench(arguments.inside, arguments.tokens, arguments.rate, arguments.result).run()
        return
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.answers:
            results[kind] = in_terminal(kind, arguments, Path(folder) / "result.json")
            say(f"{kind}: {results[kind]}")
    finish(
        {
            "max_stall_ms": max(result["max_stall_ms"] for result in results.values()),
            "max_loop_cpu_ms": max(result["max_loop_cpu_ms"] for result in results.values()),
            "cpu_percent": max(result["cpu_percent"] for result in results.values()),
            "second_half_mib": max(result["second_half_mib"] for result in results.values()),
            "answers": results,
        }
    )


if __name__ == "__main__":
    main()
