"""The time to the first token of a question about a long document, before and after everything was killed.

A document of about 8,000 tokens and a question go to a loaded server; all its processes are killed; it is started again and gets
the document with another question. The files of the cache come from the page cache, and once more from the disk, where the
system lets them be dropped. With a peer the same is done to llama.cpp's server.
"""

import asyncio
import os
import statistics
import tempfile
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import psutil
from common import finish, parse_arguments, say
from serving import Server, llama_server, pinyon_server, wave

from pinyon.models.machine.cores import read_cores

DOCUMENT_WORDS = 7900
CONTEXT_TOKENS = 9216
SETTLE_S = 3.0
"""What was computed last needs about a second until a kill cannot take it."""
WORDS = (
    "river stone light mountain town people story morning house garden winter letter bridge market window silver teacher "
    "engine harbour forest music paper village summer doctor field shadow candle journey island"
).split()


def document() -> str:
    """Return words in an order that repeats nowhere for long."""
    state, words = 1, []
    for _ in range(DOCUMENT_WORDS):
        state = state * 48271 % (2**31 - 1)
        words.append(WORDS[state % len(WORDS)])
    return " ".join(words)


def first_token_s(server: Server, question: str) -> tuple[float, int]:
    """Return the seconds to the first token, and how many tokens the prompt has."""
    body = {"prompt": f"{document()}\n\n{question}", "max_tokens": 8, "temperature": 0}
    answers, _ = asyncio.run(wave(server, "/v1/completions", [body]))
    return answers[0].first - answers[0].sent, answers[0].usage.prompt_tokens


def kill_all(server: Server) -> None:
    process = psutil.Process(server.pid)
    for each in (*process.children(recursive=True), process):
        each.kill()


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.rglob("*.kv"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=3, peer="llama-server of llama.cpp", needs_peer=False)
    threads = read_cores().threads
    warm: list[float] = []
    from_disk: list[float] = []
    with tempfile.TemporaryDirectory() as home:

        def start() -> AbstractContextManager[Server]:
            return pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS)

        with start() as server:
            cold_s, tokens = first_token_s(server, "Which words are about water?")
            say(f"first time: {cold_s:.2f} s for {tokens:,} tokens")
            asyncio.run(asyncio.sleep(SETTLE_S))
            kill_all(server)
        for number in range(arguments.rounds):
            for times, before in ((warm, None), (from_disk, partial(drop_from_page_cache, Path(home)))):
                if before is not None:
                    before()
                with start() as server:
                    seconds, _ = first_token_s(server, f"Which word comes most often? ({number}{len(times)})")
                    times.append(seconds)
                    say(
                        f"after a restart: {seconds:.3f} s {'from the page cache' if before is None else 'from the disk'}"
                    )
                    kill_all(server)
    result: dict[str, object] = {
        "model": Path(arguments.model).name,
        "prompt_tokens": tokens,
        "ttft_first_s": round(cold_s, 3),
        "ttft_warm_s": round(statistics.median(warm), 3),
        "ttft_cold_s": round(statistics.median(from_disk), 3),
        "speedup": round(cold_s / statistics.median(warm), 1),
    }
    if arguments.peer is not None:
        with llama_server(
            arguments.peer, arguments.model, context_tokens=CONTEXT_TOKENS, threads=threads, slots=1
        ) as peer:
            first_token_s(peer, "Which words are about water?")
        with llama_server(
            arguments.peer, arguments.model, context_tokens=CONTEXT_TOKENS, threads=threads, slots=1
        ) as peer:
            result["peer_ttft_s"] = round(first_token_s(peer, "Which word comes most often?")[0], 3)
    finish(result)


if __name__ == "__main__":
    main()
