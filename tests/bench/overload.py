"""Requests come half again as fast as they can be done, each wants its first token within 5 seconds: how many get it?

`goodput_ratio` is requests a second whose first token was in time and that were answered whole, over those that the same server does
where the next comes when one has ended. `late_accepted` is the share of those that it took, and that came late. Whoever has no first
token within a second more hangs up, with either server: the peer, which takes all, is not made to work for those who have gone.
"""

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from common import finish, parse_arguments, say
from serving import Server, llama_server, pinyon_server, streamed_or_refused

from pinyon.models.machine.cores import read_cores

DEADLINE_S = 5.0
SECONDS = 60.0
AT_ONCE = 16
OVERLOAD = 1.5
CONTEXT_TOKENS = 8192


@dataclass
class Outcome:
    sent: float
    ttft_s: float | None
    """None where it was refused, or has left."""
    ended: float
    has_left: bool = False


def body(dice: random.Random, deadline_s: float | None) -> dict[str, object]:
    words = " ".join(f"word{dice.randrange(10_000)}" for _ in range(dice.randint(10, 80)))
    asked = {
        "prompt": words,
        "max_tokens": dice.randint(20, 100),
        "temperature": 0,
        "ignore_eos": True,
        "speculate": "off",
    }
    return asked if deadline_s is None else {**asked, "ttft_deadline_s": deadline_s}


async def asked(client: httpx.AsyncClient, dice: random.Random, deadline_s: float | None) -> Outcome:
    sent = time.monotonic()
    try:
        async with asyncio.timeout(None if deadline_s is None else deadline_s + 1) as patience:
            question = body(dice, deadline_s)
            times = await streamed_or_refused(
                client, "/v1/completions", question, on_first=lambda: patience.reschedule(None)
            )
    except TimeoutError:
        return Outcome(sent, None, time.monotonic(), has_left=True)
    return Outcome(sent, times[0] - sent if times else None, time.monotonic())


async def capacity(client: httpx.AsyncClient, dice: random.Random) -> float:
    """Return requests a second where so many are always under way, the first quarter of the time left out."""
    ends: list[float] = []
    started = time.monotonic()
    until = started + SECONDS

    async def visitor() -> None:
        while time.monotonic() < until:
            ends.append((await asked(client, dice, None)).ended)

    await asyncio.gather(*(visitor() for _ in range(AT_ONCE)))
    since = started + SECONDS / 4
    return sum(since <= end < until for end in ends) / (until - since)


async def overloaded(client: httpx.AsyncClient, dice: random.Random, rate: float, deadline_s: float) -> list[Outcome]:
    """Send requests at random, at a rate, for the time; return what became of each."""
    started, tasks = time.monotonic(), []
    at = started
    while (at := at + dice.expovariate(rate)) < started + SECONDS:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tasks.append(asyncio.create_task(asked(client, dice, deadline_s)))
    return list(await asyncio.gather(*tasks))


async def measured(server: Server) -> tuple[float, list[Outcome]]:
    """Return the requests a second that a server does, and what became of those that came half again as fast."""
    dice = random.Random(1)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        found = await capacity(client, dice)
        say(f"{found:.2f} requests a second in a closed loop")
        return found, await overloaded(client, dice, OVERLOAD * found, DEADLINE_S)


def in_time(outcomes: list[Outcome]) -> float:
    """Return how many requests a second had their first token in time."""
    return sum(each.ttft_s is not None and each.ttft_s <= DEADLINE_S for each in outcomes) / SECONDS


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=1, peer="llama-server of llama.cpp", needs_peer=False)
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server,
    ):
        found, outcomes = asyncio.run(measured(server))
    taken = [each for each in outcomes if each.ttft_s is not None or each.has_left]
    late = sum(each.has_left or (each.ttft_s or 0.0) > DEADLINE_S for each in taken)
    result = {
        "model": Path(arguments.model).name,
        "capacity_per_s": round(found, 3),
        "asked": len(outcomes),
        "taken": len(taken),
        "goodput_ratio": round(in_time(outcomes) / found, 3),
        "late_accepted": round(late / max(1, len(taken)), 4),
    }
    if arguments.peer is not None:
        with llama_server(
            arguments.peer,
            arguments.model,
            context_tokens=CONTEXT_TOKENS,
            threads=read_cores().threads,
            slots=AT_ONCE,
            options=("--kv-unified", *arguments.peer_option),
        ) as peer:
            theirs, outcomes = asyncio.run(measured(peer))
        result |= {"peer_capacity_per_s": round(theirs, 3), "peer_goodput_ratio": round(in_time(outcomes) / theirs, 3)}
    finish(result)


if __name__ == "__main__":
    main()
