"""One client keeps 32 requests in the queue, another asks for one thing at a time: how much longer does the other one wait?

`ttft_ratio` is the other client's median time to first token beside the flood, over the same without it.
"""

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from common import finish, parse_arguments, say
from serving import Server, pinyon_server, streamed

FLOOD = 32
CONTEXT_TOKENS = 8192


def body(user: str, dice: random.Random, words: int, tokens: int) -> dict[str, object]:
    prompt = " ".join(f"word{dice.randrange(10_000)}" for _ in range(words))
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "speculate": "off",
        "user": user,
    }


async def flood(client: httpx.AsyncClient, dice: random.Random, until: asyncio.Event) -> None:
    while not until.is_set():
        await streamed(client, "/v1/completions", body("flood", dice, 60, 100), until)


async def single(client: httpx.AsyncClient, dice: random.Random, rounds: int) -> list[float]:
    """Ask one thing after the other; return the seconds to each first token."""
    waits = []
    for _ in range(rounds):
        sent = time.monotonic()
        waits.append((await streamed(client, "/v1/completions", body("single", dice, 60, 10)))[0] - sent)
    return waits


async def measured(server: Server, rounds: int) -> tuple[list[float], list[float]]:
    dice = random.Random(1)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        await single(client, dice, 2)
        alone = await single(client, dice, rounds)
        until = asyncio.Event()
        flooding = [asyncio.create_task(flood(client, dice, until)) for _ in range(FLOOD)]
        await asyncio.sleep(10)
        beside = await single(client, dice, rounds)
        until.set()
        await asyncio.gather(*flooding)
    return alone, beside


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=15)
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server,
    ):
        alone, beside = asyncio.run(measured(server, arguments.rounds))
    say(f"alone {alone}\nbeside {beside}")
    ratio = statistics.median(beside) / statistics.median(alone)
    finish(
        {
            "model": Path(arguments.model).name,
            "ttft_alone_s": round(statistics.median(alone), 3),
            "ttft_beside_s": round(statistics.median(beside), 3),
            "ttft_beside_max_s": round(max(beside), 3),
            "ttft_ratio": round(ratio, 2),
        }
    )


if __name__ == "__main__":
    main()
