"""`pinyon run` attached to a running server: from the command's start to its first byte, beyond the engine's own time to it.

The engine's own time is queue_s + prefill_s of the same answer, as `--stats` tells it. A run counts only if the server's
count of requests went up with it.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
from common import finish, parse_arguments, say
from serving import PINYON, Server, pinyon_server

PROMPT = "Explain in one sentence why the sky is blue."
CONTEXT_TOKENS = 8192


def overhead_s(home: str) -> tuple[float, float]:
    """Return the seconds from the start of one `pinyon run` to its first byte, and the engine's own share of them."""
    command = (*PINYON, "run", "--stats", "--seed", "1", "--max-tokens", "8", PROMPT)
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PINYON_HOME": home},
    ) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        elapsed = time.perf_counter() - started
        _, errors = process.communicate()
    if process.returncode or not first:
        raise SystemExit(f"invalid run: {errors.decode()}")
    stats = json.loads(errors.splitlines()[-1])
    return elapsed, stats["queue_s"] + stats["prefill_s"]


def requests_answered(server: Server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("pinyon_requests_total{"))


def attached_overhead_s(server: Server, home: str) -> tuple[float, float]:
    before = requests_answered(server)
    result = overhead_s(home)
    if requests_answered(server) != before + 1:
        raise SystemExit("invalid run: the command did not attach to the server")
    return result


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=25)
    overheads, totals = [], []
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server,
    ):
        for turn in range(arguments.rounds + 1):
            total_s, engine_s = attached_overhead_s(server, home)
            if turn:  # the first one warms up
                totals.append(total_s)
                overheads.append(total_s - engine_s)
                say(f"first byte after {total_s:.3f} s, {engine_s:.3f} s of them the engine's")
    quartiles = statistics.quantiles(overheads, n=4)
    finish(
        {
            "model": Path(arguments.model).name,
            "rounds": arguments.rounds,
            "overhead_s": round(statistics.median(overheads), 3),
            "overhead_noise_s": round(quartiles[2] - quartiles[0], 3),
            "first_byte_s": round(statistics.median(totals), 3),
        }
    )


if __name__ == "__main__":
    main()
