"""Tokens per second of `pinyon serve` over those of llama.cpp's server: one and eight clients that stream through HTTP.

Both have the same file, threads and cells, and get the same requests from the same client: greedy answers of 128 tokens to
prompts that share no prefix and are never sent twice. Both run all the time and are loaded in turn; an idle one must cost
nothing. A ratio is the median of its pairs.
"""

import asyncio
import itertools
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

from common import finish, paired_ratio, parse_arguments, say
from serving import Server, Streamed, llama_server, pinyon_server, wave

from pinyon.models.machine.cores import read_cores

CLIENTS = (1, 8)
ANSWER_TOKENS = 128
CONTEXT_TOKENS = 8192
MAX_IDLE_CPU = 0.02
"""Of one core."""


class Side:
    """One of the two servers, and what was measured of it by number of clients."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self.rates: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
        self.first_s: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
        self._server = server
        self._idle_s = self._idle_cpu_s = 0.0

    async def turn(self, prompts: list[str], other: "Side", *, warm_up: bool) -> int:
        """Answer the prompts while the other is idle; return how many tokens they have."""
        cpu_before = other._server.family_cpu_s()
        bodies = [
            {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "cache_prompt": False, "speculate": "off"}
            for prompt in prompts
        ]
        answers, elapsed = await wave(self._server, "/v1/completions", bodies)
        other._idle_cpu_s += other._server.family_cpu_s() - cpu_before
        other._idle_s += elapsed
        self._check(answers)
        if not warm_up:
            self.rates[len(prompts)].append(len(prompts) * ANSWER_TOKENS / elapsed)
            self.first_s[len(prompts)] += [answer.first - answer.sent for answer in answers]
        return sum(answer.usage.prompt_tokens for answer in answers)

    def _check(self, answers: Iterable[Streamed]) -> None:
        for answer in answers:
            tokens = answer.usage.completion_tokens
            if tokens != ANSWER_TOKENS or answer.finish_reason != "length":
                raise SystemExit(f"invalid run: {self.name} ended with {answer.finish_reason!r} after {tokens} tokens")

    def idle_cpu(self) -> float:
        share = self._idle_cpu_s / self._idle_s
        if share >= MAX_IDLE_CPU:
            raise SystemExit(f"invalid run: {self.name} used {share:.1%} of a core in the other's turns")
        return round(share, 4)


def counting_prompt(number: int) -> str:
    """Return eight numbers to go on counting from. Nine prompts in a row begin with different digits."""
    start = 1000 * (1 + number % 9) + number // 9 * 37 % 900
    return "".join(f"{n}, " for n in range(start, start + 8))


async def measure(ours: Side, theirs: Side, rounds: int) -> None:
    numbers = itertools.count()
    for turn in range(rounds + 1):
        for clients in CLIENTS:
            prompts = [counting_prompt(next(numbers)) for _ in range(clients)]
            tokens = [
                await side.turn(prompts, other, warm_up=turn == 0) for side, other in ((ours, theirs), (theirs, ours))
            ]
            if tokens[0] != tokens[1]:
                raise SystemExit(f"invalid run: the prompts have {tokens[0]} tokens here and {tokens[1]} there")
            if turn:
                say(
                    f"{clients} clients: {ours.rates[clients][-1]:.1f} tok/s, peer {theirs.rates[clients][-1]:.1f} tok/s"
                )


def figures(ours: Side, theirs: Side) -> dict[str, object]:
    result: dict[str, object] = {}
    for clients in CLIENTS:
        result[f"ratio_{clients}"], result[f"ratio_{clients}_noise"] = paired_ratio(
            ours.rates[clients], theirs.rates[clients]
        )
        for side in (ours, theirs):
            result[f"{side.name}_tokens_per_s_{clients}"] = round(statistics.median(side.rates[clients]), 1)
            result[f"{side.name}_ttft_ms_{clients}"] = round(1000 * statistics.median(side.first_s[clients]), 1)
    return result


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=15, peer="llama-server of llama.cpp")
    threads = read_cores().threads
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as our_server,
        llama_server(
            arguments.peer,
            arguments.model,
            context_tokens=CONTEXT_TOKENS,
            threads=threads,
            slots=max(CLIENTS),
            options=arguments.peer_option,
        ) as their_server,
    ):
        ours, theirs = Side("pinyon", our_server), Side("peer", their_server)
        asyncio.run(measure(ours, theirs, arguments.rounds))
        idle = {f"{side.name}_idle_cpu": side.idle_cpu() for side in (ours, theirs)}
    head = {"model": Path(arguments.model).name, "threads": threads, "rounds": arguments.rounds}
    finish({**head, **figures(ours, theirs), **idle})


if __name__ == "__main__":
    main()
