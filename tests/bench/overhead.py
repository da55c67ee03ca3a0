"""Engine time per step outside `llama_decode` and sampling: scheduling, filling the batch, text, events, encoding.

Everything that a step does in Python is counted, the encoding of its frame included. Milliseconds at batch 1 and 8.
"""

import os
import statistics
import sys
import time
from pathlib import Path

from common import Stopwatch, finish, parse_arguments, say

from pinyon.engine import protocol
from pinyon.engine.config import EngineConfig
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import Context, NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Text
from pinyon.engine.sampler import Sampler
from pinyon.models.machine.cores import read_cores

BATCHES = (1, 8)
STEPS = 200
PROMPT = "Once upon a time there was a"


def outside_ms(loaded: LoadedEngine, batch: int, inside: Stopwatch) -> list[float]:
    """Return each pure decode step's milliseconds outside the wrapped functions."""
    engine = loaded.engine
    for index in range(batch):
        request = GenerateRequest(
            f"{batch}-{index}",
            (Text(PROMPT),),
            SamplingParams(temperature=0),
            max_tokens=STEPS + batch,
            ignore_eos=True,
            speculate=Speculate.OFF,
            use_cache=False,
        )
        engine.submit(engine.prepare(request))
    times: list[float] = []
    while engine.busy:
        inside.seconds = 0.0
        started = time.perf_counter()
        protocol.encode_frame(protocol.Events(tuple(engine.step())))
        times.append(1000 * (time.perf_counter() - started - inside.seconds))
    return times[batch:STEPS]


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=3)
    inside = Stopwatch()
    inside.wrap(Context, "decode")
    inside.wrap(Sampler, "choose")
    with Path(os.devnull).open("w", encoding="utf-8") as null:
        path = Path(arguments.model)
        config = EngineConfig(os.fsencode(path), read_cores().threads, 4096)
        loaded = load_engine(config, path, NativeLog(null))
        result: dict[str, object] = {"model": path.name}
        for batch in BATCHES:
            times = [ms for _ in range(arguments.rounds) for ms in outside_ms(loaded, batch, inside)]
            percentiles = statistics.quantiles(times, n=100)
            result[f"p50_ms_batch{batch}"] = round(percentiles[49], 3)
            result[f"p99_ms_batch{batch}"] = round(percentiles[98], 3)
            say(f"batch {batch}: p50 {percentiles[49]:.3f} ms, p99 {percentiles[98]:.3f} ms over {len(times)} steps")
        loaded.close()
    if sys.gettrace() is not None:
        raise SystemExit("invalid run: a debugger or coverage is on")
    finish(result)


if __name__ == "__main__":
    main()
