"""How fast blocks come back from disk: bytes per second into the context over a plain read and SHA-256 of the same files."""

import hashlib
import os
import statistics
import tempfile
import time
from pathlib import Path

from common import Stopwatch, finish, parse_arguments, say

from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Finished
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.engine.shared_kv import SharedKv
from pinyon.models.machine.cores import read_cores

PROMPT_TOKENS = 4000
CAP_BYTES = 4 << 30


def answer(loaded: LoadedEngine, tokens: tuple[int, ...]) -> Finished:
    """Let the engine answer with one token; return the end."""
    engine, ends = loaded.engine, []
    request = GenerateRequest("a", (Tokens(tokens),), SamplingParams(temperature=0), max_tokens=1, ignore_eos=True)
    engine.submit(engine.prepare(request))
    while engine.busy:
        ends += [event for _, event in engine.step() if isinstance(event, Finished)]
    return ends[0]


def plain_s(folder: Path) -> tuple[float, int]:
    """Return the seconds in which the files are read and digested one after another, and how many bytes they have."""
    size_bytes, started = 0, time.perf_counter()
    for path in folder.rglob("*.kv"):
        data = path.read_bytes()
        hashlib.sha256(data).digest()
        size_bytes += len(data)
    return time.perf_counter() - started, size_bytes


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=9)
    path = Path(arguments.model)
    tokens = tuple(range(1000, 1000 + PROMPT_TOKENS))
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        folder = Path(home) / "kv"

        def load() -> LoadedEngine:
            loaded = load_engine(EngineConfig(os.fsencode(path), read_cores().threads, 4096), path, NativeLog(log))
            loaded.engine.use_disk(open_tier(folder, path, loaded.context.kv_settings, CAP_BYTES))
            return loaded

        config_with_ram = EngineConfig(os.fsencode(path), read_cores().threads, 4096, kv_ram_cap_bytes=CAP_BYTES)
        first = load_engine(config_with_ram, path, NativeLog(log))
        first.engine.use_disk(open_tier(folder, path, first.context.kv_settings, CAP_BYTES))
        answer(first, tokens)
        first.engine.close()
        first.close()
        stopwatch = Stopwatch()
        stopwatch.wrap(SharedKv, "restore")
        ratios = []
        for _ in range(arguments.rounds):
            loaded = load()
            stopwatch.seconds = 0.0
            end, restore_s = answer(loaded, tokens), stopwatch.seconds
            if end.cache.disk != PROMPT_TOKENS - 1:
                raise SystemExit(f"invalid run: {end.cache.disk} tokens came from disk")
            loaded.engine.close()
            loaded.close()
            read_s, size_bytes = plain_s(folder)
            ratios.append(read_s / restore_s)
            say(f"restore {size_bytes / restore_s / 1e6:.0f} MB/s, plain {size_bytes / read_s / 1e6:.0f} MB/s")
    finish({"model": path.name, "ratio": round(statistics.median(ratios), 3), "bytes": size_bytes})


if __name__ == "__main__":
    main()
