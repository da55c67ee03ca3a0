"""What the cache costs a prompt that was never seen: time to the first token with it over without it.

Pairs of prompts of the same length, all different, by turns in one engine that keeps KV in RAM and on disk. Between two of them
the engine tidies up, as it does in idle time. The interval is that of the median ratio, by bootstrap.
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
from pinyon.models.devices import usable_threads

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
    while engine.tidy() == 0.0:
        pass
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
        config = EngineConfig(os.fsencode(path), usable_threads(), 4096, kv_ram_cap_bytes=CAP_BYTES)
        loaded = load_engine(config, path, NativeLog(log))
        loaded.engine.use_disk(open_tier(Path(home) / "kv", path, loaded.context.kv_settings, CAP_BYTES))
        ratios = []
        for number in range(arguments.rounds + 1):
            pair = {}
            for use_cache in (True, False) if number % 2 else (False, True):
                tokens = tuple(dice.randrange(1000, loaded.info.vocab_size) for _ in range(PROMPT_TOKENS))
                pair[use_cache] = first_token_s(loaded, f"{number}{use_cache}", tokens, use_cache=use_cache)
            if number:
                ratios.append(pair[True] / pair[False])
            if number and number % 20 == 0:
                say(f"{number} pairs: {statistics.median(ratios):.4f}")
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
