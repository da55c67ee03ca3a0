"""A thousand streams that are given up somewhere: what stays behind, and how soon does the engine stop?

First in one process, where the size of the native state tells of every cell; then over HTTP, where connections are closed in
the queue, in the prompt and in the answer.
"""

import asyncio
import contextlib
import os
import random
import re
import tempfile
import time
from pathlib import Path

import httpx
import msgspec
import psutil
from common import finish, parse_arguments, percentile, say
from serving import Server, pinyon_server

from pinyon.engine.config import EngineConfig
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.models.machine.cores import read_cores

STREAMS = 1000
AT_ONCE = 80
"""More than run at once."""
CONTEXT_TOKENS = 4096
"""Not enough for all of them: some give way."""


HELD = re.compile(r"^pinyon_context_cells_held{.*} (.*)$", re.MULTILINE)
KEPT = re.compile(r"^pinyon_kv_ram_bytes{.*} (.*)$", re.MULTILINE)


def leaked(model: Path, log: Path, streams: int) -> int:
    """Return the cells that are left in the native state after so many requests were cancelled."""
    dice = random.Random(1)
    with log.open("w") as file:
        loaded = load_engine(
            EngineConfig(os.fsencode(model), read_cores().threads, CONTEXT_TOKENS), model, NativeLog(file)
        )
        engine, before = loaded.engine, loaded.context.state_bytes()
        open_: list[str] = []
        for number in range(streams):
            tokens = tuple(dice.randrange(1000, loaded.info.vocab_size) for _ in range(dice.randint(1, 150)))
            request = GenerateRequest(
                f"{number}",
                (Tokens(tokens),),
                SamplingParams(),
                500,
                ignore_eos=True,
                n=dice.choice([1, 1, 2]),
                use_cache=False,
            )
            engine.submit(engine.prepare(request))
            open_.append(request.id)
            for _ in range(dice.choice([0, 0, 1, 1, 3])):
                engine.step()
            if len(open_) > dice.randint(1, AT_ONCE):
                engine.cancel(open_.pop(dice.randrange(len(open_))))
        for name in open_:
            engine.cancel(name)
        left_bytes = loaded.context.state_bytes() - before
        engine.submit(engine.prepare(msgspec.structs.replace(request, id="one", n=1)))
        engine.step()
        cell_bytes = (loaded.context.state_bytes() - before - left_bytes) // engine._kv.used_cells
        left = -(-left_bytes // cell_bytes)
        engine.close()
        loaded.close()
    return left


async def given_up(server: Server, streams: int) -> dict[str, float]:
    """Close connections at random moments; return what the server has more than before, and how soon it stopped."""
    dice = random.Random(2)
    process = psutil.Process(server.pid)
    family = [process, *process.children(recursive=True)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:

        async def visit() -> None:
            words = " ".join(f"word{dice.randrange(10_000)}" for _ in range(dice.choice([5, 50, 300])))
            body = {"prompt": words, "max_tokens": 500, "ignore_eos": True, "stream": dice.random() < 0.8}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.choice([0.01, 0.1, 0.5, 1.5])):
                    async with client.stream("POST", "/v1/completions", json=body) as response:
                        async for _ in response.aiter_raw():
                            pass

        async def visitor(visits: int) -> None:
            for _ in range(visits):
                await visit()

        async def stopped_s() -> float:
            """Wait until the engine itself says that it holds nothing for anybody; return how long that took."""
            started = time.monotonic()
            while HELD.search((await client.get("/metrics")).text).group(1) != "0.0":
                await asyncio.sleep(0.01)
            return time.monotonic() - started

        await asyncio.gather(*(visitor(2) for _ in range(AT_ONCE)))  # what is allocated once is there now

        async def kept_bytes() -> float:
            """The cache may grow: what was computed for somebody who left is kept."""
            return float(KEPT.search((await client.get("/metrics")).text).group(1))

        await stopped_s()
        kept_before = await kept_bytes()
        before = [(each.num_fds(), each.memory_info().rss) for each in family]
        stops = []
        for _ in range(streams // AT_ONCE):
            await asyncio.gather(*(visitor(1) for _ in range(AT_ONCE)))
            stops.append(await stopped_s())
        await asyncio.sleep(1)
        kept = await kept_bytes() - kept_before
        after = [(each.num_fds(), each.memory_info().rss) for each in family]
    return {
        "fds_leaked": sum(later - earlier for (earlier, _), (later, _) in zip(before, after, strict=True)),
        "rss_growth_mib": round(
            (sum(later - earlier for (_, earlier), (_, later) in zip(before, after, strict=True)) - kept) / 2**20, 1
        ),
        "cache_growth_mib": round(kept / 2**20, 1),
        "stop_ms_p99": round(1000 * percentile(stops, 99), 1),
    }


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=STREAMS)
    with tempfile.TemporaryDirectory() as home:
        left = leaked(Path(arguments.model), Path(home) / "log", arguments.rounds)
        say(f"{left} cells are left in the native state")
        with pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server:
            found = asyncio.run(given_up(server, arguments.rounds))
    finish({"model": Path(arguments.model).name, "streams": arguments.rounds, "cells_leaked": left, **found})


if __name__ == "__main__":
    main()
