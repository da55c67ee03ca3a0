"""Eight requests at once on one prefix of 4,000 tokens: how many of its tokens are computed, and how many cells hold them.

Cells are counted in llama.cpp's own terms: the bytes of all state, over those that one more token takes.
"""

import os
from pathlib import Path

from common import finish, parse_arguments

from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Finished
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.models.machine.cores import read_cores

PREFIX_TOKENS = 4000
TAIL_TOKENS = 20
ANSWER_TOKENS = 16
REQUESTS = 8
CONTEXT_TOKENS = 8192


def submit(loaded: LoadedEngine, name: str, tokens: tuple[int, ...], answer_tokens: int) -> None:
    request = GenerateRequest(
        name, (Tokens(tokens),), SamplingParams(temperature=0), max_tokens=answer_tokens, ignore_eos=True
    )
    loaded.engine.submit(loaded.engine.prepare(request))


def ends(loaded: LoadedEngine) -> list[Finished]:
    found = []
    while loaded.engine.busy:
        found += [event for _, event in loaded.engine.step() if isinstance(event, Finished)]
    return found


def bytes_per_token(loaded: LoadedEngine) -> float:
    """Return what a cell adds to the state, from sequences of 128 and of 64 tokens."""
    sizes = []
    for tokens in (64, 128):
        submit(loaded, "probe", tuple(range(100, 101 + tokens)), 1)
        while loaded.engine.busy:
            loaded.engine.step()
        sizes.append(loaded.context.state_bytes())
    return (sizes[1] - sizes[0]) / 64


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=1)
    path = Path(arguments.model)
    prefix = tuple(range(1000, 1000 + PREFIX_TOKENS))
    with Path(os.devnull).open("w") as log:
        loaded = load_engine(
            EngineConfig(os.fsencode(path), read_cores().threads, CONTEXT_TOKENS), path, NativeLog(log)
        )
        empty = loaded.context.state_bytes()
        per_token = bytes_per_token(loaded)
        before = loaded.context.state_bytes()
        for number in range(REQUESTS):
            tail = range(6000 + number * TAIL_TOKENS, 6000 + (number + 1) * TAIL_TOKENS)
            submit(loaded, str(number), (*prefix, *tail), ANSWER_TOKENS)
        finished = ends(loaded)
        cells = round((loaded.context.state_bytes() - before) / per_token)
        loaded.close()
    if len(finished) != REQUESTS or empty >= before:
        raise SystemExit("invalid run: not every request was answered")
    computed = sum(end.usage.prompt_tokens - end.usage.cached_tokens for end in finished)
    tails = REQUESTS * (TAIL_TOKENS + ANSWER_TOKENS - 1)
    finish(
        {
            "model": path.name,
            "prefix_computed_tokens": computed - REQUESTS * TAIL_TOKENS,
            "kv_cells_for_prefix": cells - tails,
            "tail_cells": tails,
        }
    )


if __name__ == "__main__":
    main()
