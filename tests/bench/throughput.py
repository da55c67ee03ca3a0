"""Tokens per second of the whole engine, worker process included, over a bare ctypes loop that computes the same rows.

Greedy against argmax, and temperature + top-p against `llama_sampler_sample`. Runs alternate; a batch's ratio is the
median of its pairs.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bare import BareModel, sampler_chain
from common import finish, paired_ratio, parse_arguments, say

from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig
from pinyon.engine.context_shape import MAX_SEQUENCES
from pinyon.engine.events import Failed, Finished, FinishReason
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Tokens
from pinyon.models.machine.cores import read_cores

BATCHES = (1, 4, 8, 16)
ANSWER_TOKENS = 32
CELLS = 4096
TEMPERATURE, TOP_P = 0.8, 0.95


def prompts(bare: BareModel, batch: int) -> list[list[int]]:
    """Numbers to go on counting from: likely continuations, so that top-p cuts as it does in real text."""
    return [bare.tokenize("".join(f"{n}, " for n in range(start, start + 8))) for start in range(10, 10 + batch)]


async def engine_seconds(client: EngineClient, tokens: list[list[int]], sampling: SamplingParams, run: str) -> float:
    async def answer(index: int, ids: list[int]) -> None:
        request = GenerateRequest(
            f"{run}-{index}",
            (Tokens(tuple(ids)),),
            sampling,
            max_tokens=ANSWER_TOKENS,
            ignore_eos=True,
            speculate=Speculate.OFF,
            use_cache=False,
        )
        async for event in client.generate(request):
            if isinstance(event, Failed):
                raise SystemExit(f"invalid run: {event.message}")
            if isinstance(event, Finished) and event.reasons != (FinishReason.LENGTH,):
                raise SystemExit(f"invalid run: an answer ended after {event.usage.completion_tokens} tokens")

    started = time.perf_counter()
    await asyncio.gather(*(answer(index, ids) for index, ids in enumerate(tokens)))
    return time.perf_counter() - started


async def measure(model: str, rounds: int) -> dict[str, object]:
    threads = read_cores().threads
    bare = BareModel(model, cells=CELLS, sequences=MAX_SEQUENCES, threads=threads)
    log = Path(tempfile.mkdtemp()) / "engine.log"
    client = EngineClient(EngineConfig(os.fsencode(model), threads, CELLS), log)
    await client.start()
    greedy = SamplingParams(temperature=0)
    sampled = SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, top_k=0, min_p=0, seed=1)
    batches: dict[str, dict[str, float]] = {}
    try:
        for batch in BATCHES:
            ids = prompts(bare, batch)
            figures: dict[str, float] = {}
            for key, sampling in (("ratio", greedy), ("ratio_sampled", sampled)):
                ours, theirs = [], []
                for turn in range(rounds + 1):
                    chains = [sampler_chain(TEMPERATURE, TOP_P, 1) for _ in ids] if sampling is sampled else None
                    engine_s = await engine_seconds(client, ids, sampling, f"{batch}-{key}-{turn}")
                    bare_s = bare.generate(ids, ANSWER_TOKENS, chains)
                    if turn:  # the first pair warms up
                        ours.append(batch * ANSWER_TOKENS / engine_s)
                        theirs.append(batch * ANSWER_TOKENS / bare_s)
                figures[key], figures[f"{key}_noise"] = paired_ratio(ours, theirs)
                figures[f"{key}_tokens_per_s"] = round(sorted(ours)[len(ours) // 2], 1)
                say(f"batch {batch}, {key}: {figures[key]} of the bare loop, {figures[f'{key}_tokens_per_s']} tok/s")
            batches[str(batch)] = figures
    finally:
        await client.close()
    return {"model": Path(model).name, "threads": threads, "rounds": rounds, "batches": batches}


if __name__ == "__main__":
    arguments = parse_arguments(__doc__, rounds=15)
    finish(asyncio.run(measure(arguments.model, arguments.rounds)))
