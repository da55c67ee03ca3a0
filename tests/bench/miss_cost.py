"""What the cache costs a prompt that was never seen: time to the first token with it over without it.

Pairs of prompts of the same length, all different, by turns in two engines: one keeps KV in the context, in RAM and on disk, the
other is asked for answers without cache. After each prompt the engine tidies up, as it does in idle time, until its disk is at rest.
The interval is that of the median ratio, by bootstrap.
"""

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from common import finish, parse_arguments, say

from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Chunk
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.models.machine.cores import read_cores

PROMPT_TOKENS = 512
CAP_BYTES = 1 << 30
RESAMPLES = 2000


def first_token_s(loaded: LoadedEngine, name: str, tokens: tuple[int, ...], *, use_cache: bool) -> float:
    """Return the seconds from a prompt to its first token, and tidy up after it."""
    engine = loaded.engine
    request = GenerateRequest(
        name, (Tokens(tokens),), SamplingParams(temperature=0), max_tokens=1, ignore_eos=True, use_cache=use_cache
    )
    prepared = engine.prepare(request)
    started = time.perf_counter()
    engine.submit(prepared)
    seconds = None
    while engine.busy:
        if any(isinstance(event, Chunk) for _, event in engine.step()):
            seconds = time.perf_counter() - started
    if seconds is None:
        raise SystemExit("invalid run: an answer without a token")
    while (in_s := engine.tidy()) is not None:
        time.sleep(in_s)
    return seconds


def interval(ratios: list[float], dice: random.Random) -> tuple[float, float]:
    """Return where the median lies with 95 % confidence."""
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return round(medians[int(0.025 * RESAMPLES)], 4), round(medians[int(0.975 * RESAMPLES)], 4)


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=200)
    dice = random.Random(1)
    path = Path(arguments.model)
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        engines = {}
        for use_cache in (True, False):
            config = EngineConfig(os.fsencode(path), read_cores().threads, 4096, kv_ram_cap_bytes=CAP_BYTES)
            engines[use_cache] = load_engine(config, path, NativeLog(log))
        settings = engines[True].context.kv_settings
        engines[True].engine.use_disk(open_tier(Path(home) / "kv", path, settings, CAP_BYTES))
        ratios = []
        for number in range(arguments.rounds + 1):
            pair = {}
            for use_cache in (True, False) if number % 2 else (False, True):
                loaded = engines[use_cache]
                tokens = tuple(dice.randrange(1000, loaded.info.vocab_size) for _ in range(PROMPT_TOKENS))
                pair[use_cache] = first_token_s(loaded, f"{number}", tokens, use_cache=use_cache)
            if number:
                ratios.append(pair[True] / pair[False])
            if number and number % 20 == 0:
                say(f"{number} pairs: {statistics.median(ratios):.4f}")
        for loaded in engines.values():
            loaded.engine.close()
            loaded.close()
    finish(
        {
            "model": path.name,
            "pairs": len(ratios),
            "ratio": round(statistics.median(ratios), 4),
            "interval": interval(ratios, dice),
        }
    )


if __name__ == "__main__":
    main()
