"""3,000 distinct prompts at a cap of 200 MiB: the most bytes that the folder of KV held at any moment that was looked at.

A thread looks all the time, at every file there is, unfinished ones included.
"""

import contextlib
import os
import tempfile
import threading
from pathlib import Path

from common import finish, parse_arguments, say

from pinyon.engine.config import EngineConfig
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Tokens
from pinyon.models.machine.cores import read_cores

PROMPT_TOKENS = 66
CAP_BYTES = 200 << 20
LOOK_S = 0.005


def kept_bytes(folder: str) -> int:
    """Return what all files below a folder hold together, unfinished ones and notes included."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += kept_bytes(entry.path) if entry.is_dir() else entry.stat().st_size
    return total


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=3000)
    path = Path(arguments.model)
    seen: list[int] = []
    is_over = threading.Event()
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        folder = Path(home) / "kv"

        def look() -> None:
            while not is_over.wait(LOOK_S):
                seen.append(kept_bytes(str(folder)))

        config = EngineConfig(os.fsencode(path), read_cores().threads, 2048, kv_ram_cap_bytes=CAP_BYTES)
        loaded = load_engine(config, path, NativeLog(log))
        engine = loaded.engine
        engine.use_disk(open_tier(folder, path, loaded.context.kv_settings, CAP_BYTES))
        watcher = threading.Thread(target=look)
        watcher.start()
        for number in range(arguments.rounds):
            tokens = (1000 + number % 5000, 1000 + number // 5000, *range(2000, 1998 + PROMPT_TOKENS))
            request = GenerateRequest(str(number), (Tokens(tokens),), SamplingParams(temperature=0), max_tokens=1)
            engine.submit(engine.prepare(request))
            while engine.busy:
                engine.step()
            while engine.tidy() == 0.0:
                pass
            if number % 500 == 0:
                say(f"{number} prompts, {kept_bytes(str(folder)) >> 20} MiB")
        engine.close()
        loaded.close()
        is_over.set()
        watcher.join()
    if max(seen) < CAP_BYTES // 2:
        raise SystemExit("invalid run: the cap was never near")
    finish(
        {
            "model": path.name,
            "prompts": arguments.rounds,
            "max_bytes_seen": max(seen),
            "cap_bytes": CAP_BYTES,
            "looks": len(seen),
        }
    )


if __name__ == "__main__":
    main()
