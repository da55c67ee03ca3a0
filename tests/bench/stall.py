"""Four answers are being written when a prompt of 8,000 tokens comes: how long do they stall, and how soon is it answered?

The same once more for each of some fixed chunks: the trade-off that a fixed size has to make, and the best one of those that keep
the bound. With a peer, four streams and the prompt are sent over HTTP to both servers.
"""

import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from common import finish, parse_arguments, percentile, say
from serving import Server, llama_server, pinyon_server, streamed

from pinyon.engine.config import EngineConfig
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Tokens
from pinyon.engine.step_budget import Step, StepBudget
from pinyon.models.machine.cores import read_cores

READERS = 4
PROMPT_TOKENS = 8000
CONTEXT_TOKENS = 16_384
STALL_S = 0.15
FIXED_ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
"""In this order, until two in a row take far longer than the bound."""
FAR = 1.3
WARM_STEPS, LATER_STEPS = 30, 10
GREEDY = SamplingParams(temperature=0)


class FixedRows(StepBudget):
    """Chunks of one size."""

    def __init__(self, usual: StepBudget, rows: int) -> None:
        super().__init__(usual.costs, max_rows=usual.max_rows, stall_s=STALL_S)
        self.usual = usual
        self._rows = rows

    def step(self, lengths: Sequence[int], used: int) -> Step:
        step, rows = super().step(lengths, used), self._rows
        step.chunk_rows = lambda _length: rows  # type: ignore[method-assign]
        return step


def request(name: str, tokens: tuple[int, ...], max_tokens: int) -> GenerateRequest:
    return GenerateRequest(name, (Tokens(tokens),), GREEDY, max_tokens, ignore_eos=True, speculate=Speculate.OFF)


def timed_step(loaded: LoadedEngine) -> tuple[int, float]:
    """Compute a step; return the cells that were in use, and the seconds."""
    span, started = loaded.engine._kv.used_cells, time.perf_counter()
    loaded.engine.step()
    return span, time.perf_counter() - started


def stalled(
    loaded: LoadedEngine, dice: random.Random, rows: int | None, prompt_tokens: int = PROMPT_TOKENS
) -> dict[str, float]:
    """Run it once, with chunks of so many rows or, with None, as the scheduler decides.

    The bound of each step is worked out from what steps without the prompt took, before it came and when it was there.
    """
    engine, scheduler = loaded.engine, loaded.engine._scheduler
    usual = scheduler._budget
    scheduler._budget = FixedRows(usual, rows) if rows else usual

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(dice.randrange(1000, loaded.info.vocab_size) for _ in range(number))

    for number in range(READERS):
        engine.submit(engine.prepare(request(f"reader {number}", tokens(40), 4000)))
    before = [timed_step(loaded) for _ in range(WARM_STEPS)][WARM_STEPS // 2 :]
    came = time.perf_counter()
    engine.submit(engine.prepare(request("prompt", tokens(prompt_tokens), 1)))
    prompt = scheduler.waiting[-1]
    steps = []
    while not prompt.done:
        steps.append(timed_step(loaded))
    ttft_s = time.perf_counter() - came
    after = [timed_step(loaded) for _ in range(LATER_STEPS)]
    after = [(span, seconds) for span, seconds in after if span >= prompt_tokens]
    for number in range(READERS):
        engine.cancel(f"reader {number}")
    engine._kv.make_room(CONTEXT_TOKENS)
    scheduler._budget = usual
    (low, low_s), (high, high_s) = (
        (statistics.median(column) for column in zip(*measured, strict=True)) for measured in (before, after)
    )
    bounds = [max(STALL_S, 2 * (low_s + (high_s - low_s) * (span - low) / (high - low))) for span, _ in steps]
    seconds = [each for _, each in steps]
    return {
        "step_p99_ms": 1000 * percentile(seconds, 99),
        "bound_ms": 1000 * statistics.median(bounds),
        "over_bound_p99": percentile([step / bound for step, bound in zip(seconds, bounds, strict=True)], 99),
        "ttft_s": ttft_s,
        "steps": len(steps),
    }


async def over_http(server: Server, question: list[int]) -> tuple[float, float]:
    """Return the 99th percentile of the gaps between a reader's tokens while the prompt is computed, and the prompt's TTFT."""
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        body = {
            "prompt": "A story about a river:",
            "max_tokens": 1500,
            "temperature": 0,
            "ignore_eos": True,
            "speculate": "off",
        }
        until = asyncio.Event()
        readers = [asyncio.create_task(streamed(client, "/v1/completions", body, until)) for _ in range(READERS)]
        await asyncio.sleep(5)
        long = {"prompt": question, "max_tokens": 1, "temperature": 0}
        sent = time.monotonic()
        await streamed(client, "/v1/completions", long)
        answered = time.monotonic()
        until.set()
        gaps = []
        for reader in readers:
            times = [sent, *(at for at in await reader if sent < at < answered), answered]
            gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    return percentile(gaps, 99), answered - sent


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=2, peer="llama-server of llama.cpp", needs_peer=False)
    path, dice, threads = Path(arguments.model), random.Random(1), read_cores().threads
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        loaded = load_engine(EngineConfig(os.fsencode(path), threads, CONTEXT_TOKENS), path, NativeLog(log))
        stalled(loaded, dice, None, 500)  # the cost model learns
        ours, curve, far = [], {}, 0
        for rows in FIXED_ROWS:
            if len(ours) < arguments.rounds:
                ours.append(stalled(loaded, dice, None))
                say(f"scheduler {ours[-1]}")
            curve[rows] = stalled(loaded, dice, rows)
            say(f"{rows} rows {curve[rows]}")
            far = far + 1 if curve[rows]["over_bound_p99"] > FAR else 0
            if far == 2:
                break
        vocab_size = loaded.info.vocab_size
        loaded.engine.close()
        loaded.close()
    kept = [each["ttft_s"] for each in curve.values() if each["over_bound_p99"] <= 1.1]
    if not kept:
        raise SystemExit(f"invalid run: no fixed chunk keeps the bound: {curve}")
    result: dict[str, object] = {
        "model": path.name,
        **{key: round(statistics.median(each[key] for each in ours), 3) for key in ours[0]},
        "ttft_noise_s": round(max(each["ttft_s"] for each in ours) - min(each["ttft_s"] for each in ours), 2),
        "best_fixed_ttft_s": round(min(kept), 2),
        "curve": {rows: {key: round(value, 3) for key, value in each.items()} for rows, each in curve.items()},
    }
    question = [dice.randrange(1000, vocab_size) for _ in range(PROMPT_TOKENS)]
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server,
    ):
        gap_s, ttft_s = asyncio.run(over_http(server, question))
    result |= {"itl_p99_ms": round(1000 * gap_s, 1), "http_ttft_s": round(ttft_s, 2)}
    if arguments.peer is not None:
        with llama_server(
            arguments.peer,
            arguments.model,
            context_tokens=CONTEXT_TOKENS,
            threads=threads,
            slots=READERS + 1,
            options=("--kv-unified", *arguments.peer_option),
        ) as peer:
            gap_s, ttft_s = asyncio.run(over_http(peer, question))
        result |= {"peer_itl_p99_ms": round(1000 * gap_s, 1), "peer_ttft_s": round(ttft_s, 2)}
    finish(result)


if __name__ == "__main__":
    main()
