"""What the service adds to a streamed answer: its CPU time a token, and how long after the engine's first token its event comes.

CPU time is the service process's alone, without the engine's worker, over whole requests: their parsing and their ends
included, idling taken off. For the delay the worker is started with a probe that puts its clock into the text of the first token:
the client compares that with its own, which on Linux is the same clock in all processes. One and eight streams at once, by
the routes for chat and for plain completions.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import finish, parse_arguments, say
from serving import Server, Streamed, pinyon_server, wave

STREAMS = (1, 8)
ANSWER_TOKENS = 256
CONTEXT_TOKENS = 8192
IDLE_S = 3.0

PROBED_WORKER = """
import msgspec
from pinyon.engine.sequence import Sequence
from pinyon.engine.worker import main

take = Sequence.take

def take_and_tell(self, logits):
    events = take(self, logits)
    if self.completion_tokens > 1:
        return events
    return [msgspec.structs.replace(event, text=repr(self.first_token)) for event in events]

Sequence.take = take_and_tell
main()
"""
PROBED_PINYON = f"""
import sys
from pinyon.engine import worker_process
worker_process.WORKER_COMMAND = (sys.executable, "-P", "-c", {PROBED_WORKER!r})
from pinyon.app.cli.main import main
main()
"""

# Digits alone: one token has one event, and no answer ends early.
ANSWER = {"regex": "[0-9]{1000}", "max_tokens": ANSWER_TOKENS, "temperature": 0}
ROUTES = {
    "/v1/chat/completions": {**ANSWER, "messages": [{"role": "user", "content": "Write down the digits of pi."}]},
    "/v1/completions": {**ANSWER, "prompt": "The digits of pi are "},
}


def cpu_s(server: Server) -> float:
    """Return the CPU time of one process, without its children, to the nanosecond; psutil's comes in hundredths of a second."""
    return time.clock_gettime(~server.pid << 3 | 2)  # the clock that clock_getcpuclockid(3) names on Linux


def idle_share(server: Server) -> float:
    before = cpu_s(server)
    time.sleep(IDLE_S)
    return (cpu_s(server) - before) / IDLE_S


class Route:
    """One route with one number of streams, and what was measured of it."""

    def __init__(self, path: str, streams: int) -> None:
        self.path, self.streams = path, streams
        self.cpu_us: list[float] = []
        self.delays_ms: list[float] = []

    async def turn(self, server: Server, idle: float, *, warm_up: bool) -> None:
        before = cpu_s(server)
        answers, elapsed = await wave(server, self.path, [ROUTES[self.path]] * self.streams)
        used_s = cpu_s(server) - before - idle * elapsed
        for answer in answers:
            check(answer)
        if warm_up:
            return
        self.cpu_us.append(1e6 * used_s / (self.streams * ANSWER_TOKENS))
        self.delays_ms += [1000 * (answer.first - float(answer.texts[0][1])) for answer in answers]
        say(
            f"{self.path}, {self.streams} streams: {self.cpu_us[-1]:.0f} us of CPU a token, {self.delays_ms[-1]:.2f} ms"
        )

    def figures(self) -> dict[str, float]:
        quartiles = statistics.quantiles(self.cpu_us, n=4)
        return {
            "cpu_us": round(statistics.median(self.cpu_us), 1),
            "cpu_us_noise": round(quartiles[2] - quartiles[0], 1),
            "first_byte_ms": round(statistics.median(self.delays_ms), 2),
            "first_byte_ms_p95": round(statistics.quantiles(self.delays_ms, n=20)[18], 2),
        }


def check(answer: Streamed) -> None:
    tokens, events = answer.usage.completion_tokens, len(answer.texts)
    if not tokens == events == ANSWER_TOKENS:
        raise SystemExit(
            f"invalid run: an answer has {tokens} tokens in {events} events, not {ANSWER_TOKENS} in as many"
        )


async def measure(server: Server, rounds: int) -> dict[str, object]:
    idle = idle_share(server)
    routes = [Route(path, streams) for path in ROUTES for streams in STREAMS]
    for turn in range(rounds + 1):
        for route in routes:
            await route.turn(server, idle, warm_up=turn == 0)
    result: dict[str, object] = {"idle_cpu": round(idle, 5)}
    for path in ROUTES:
        result[path] = {str(route.streams): route.figures() for route in routes if route.path == path}
    return result


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=10)
    probed = (sys.executable, "-c", PROBED_PINYON)
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS, command=probed) as server,
    ):
        result = asyncio.run(measure(server, arguments.rounds))
    finish({"model": Path(arguments.model).name, "rounds": arguments.rounds, **result})


if __name__ == "__main__":
    main()
