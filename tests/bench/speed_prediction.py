"""Predicted against measured speed: of each model file, and of the same model in other weight types, made for this run.

Weight types are measured first, as `pinyon` does it once for a machine. Then the files' steps are measured in turns, with little
context, and the quickest of the rounds counts on both sides, since other programs only ever make steps slower.
`rank_correlation` is Spearman's, the lower one of prefill and eight clients; `error_median` is over all files and both.
"""

import argparse
import asyncio
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as lib
from bare import BareModel
from common import finish, say

from pinyon.app.machine_speed import measure_speed
from pinyon.app.settings import Folders
from pinyon.models.gguf_header import read_header
from pinyon.models.machine.cores import read_cores
from pinyon.models.machine.weight_speed import WeightSpeed
from pinyon.models.speed_prediction import CLIENTS, Speed, much_faster_type, predicted_speed

FILE_TYPES = {
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "BF16": lib.LLAMA_FTYPE_MOSTLY_BF16,
}
LARGE_BYTES = 200_000_000
"""Models above this are made in the first type only."""
PROMPT_TOKENS = 256
STEPS = 12


def quantised(source: Path, target: Path, file_type: int, threads: int) -> Path:
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, threads, True
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise SystemExit(f"invalid run: {source} cannot be made into {target.name}")
    return target


def variants(model: Path, folder: Path, threads: int) -> Iterator[Path]:
    yield model
    is_large = model.stat().st_size > LARGE_BYTES
    for name, file_type in list(FILE_TYPES.items())[: 1 if is_large else None]:
        yield quantised(model, folder / f"{model.stem}-{name}.gguf", file_type, threads)


def seconds(model: BareModel, rows: Sequence[tuple[int, int, int, bool]]) -> float:
    started = time.perf_counter()
    model.decode(rows)
    return time.perf_counter() - started


def measured(model: BareModel) -> Speed:
    """One round."""
    steps: dict[int, list[float]] = {}
    for clients in (1, CLIENTS):
        lib.llama_memory_clear(lib.llama_get_memory(model.context), True)
        steps[clients] = [seconds(model, [(9, step, i, True) for i in range(clients)]) for step in range(STEPS)]
    lib.llama_memory_clear(lib.llama_get_memory(model.context), True)
    prompt_s = seconds(model, [(9, position, 0, position == PROMPT_TOKENS - 1) for position in range(PROMPT_TOKENS)])
    return Speed(1 / min(steps[1]), PROMPT_TOKENS / prompt_s, CLIENTS / min(steps[CLIENTS]))


def quickest(rounds: Sequence[Speed]) -> Speed:
    return Speed(
        max(one.decode_tokens_per_s for one in rounds),
        max(one.prefill_tokens_per_s for one in rounds),
        max(one.batch_tokens_per_s for one in rounds),
    )


def order(values: Sequence[float]) -> list[int]:
    return [sorted(values).index(value) for value in values]


def compare(files: Sequence[Path], speed: WeightSpeed, threads: int, rounds: int) -> dict[str, object]:
    predicted = []
    for file in files:
        prediction = predicted_speed([read_header(file)], speed)
        if prediction is None:
            raise SystemExit(f"invalid run: {file.name} has weights of a type that was not measured")
        predicted.append(prediction)
    models = [BareModel(str(file), cells=1024, sequences=CLIENTS, threads=threads) for file in files]
    turns = [[measured(model) for model in models] for _ in range(rounds)]
    found = [quickest(turn) for turn in zip(*turns, strict=True)]
    figures: dict[str, object] = {}
    errors: dict[str, list[float]] = {}
    ranks = {}
    for kind in Speed.__dataclass_fields__:
        pairs = [(getattr(p, kind), getattr(m, kind)) for p, m in zip(predicted, found, strict=True)]
        errors[kind] = [abs(foretold / real - 1) for foretold, real in pairs]
        ranks[kind] = statistics.correlation(*map(order, zip(*pairs, strict=True)))
        figures[kind] = {
            file.stem: [round(value, 1) for value in pair] for file, pair in zip(files, pairs, strict=True)
        }
        say(f"{kind}: {figures[kind]}")
    faster = {file.stem: much_faster_type([read_header(file)], speed) for file in files}
    return {
        "rank_correlation": round(min(ranks["prefill_tokens_per_s"], ranks["batch_tokens_per_s"]), 3),
        "error_median": round(statistics.median(errors["prefill_tokens_per_s"] + errors["batch_tokens_per_s"]), 3),
        "error_max": round(max(errors["prefill_tokens_per_s"] + errors["batch_tokens_per_s"]), 3),
        "decode_rank_correlation": round(ranks["decode_tokens_per_s"], 3),
        "decode_error_median": round(statistics.median(errors["decode_tokens_per_s"]), 3),
        "predicted_and_measured": figures,
        "much_faster": {name: f"{kind.name} {kind.prefill:.1f}x" for name, kind in faster.items() if kind is not None},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, nargs="+", type=Path, metavar="FILE", help="GGUF files")
    parser.add_argument("--rounds", type=int, default=5, help="of measurements of all files (default %(default)s)")
    arguments, threads = parser.parse_args(), read_cores().threads
    with tempfile.TemporaryDirectory() as folder:
        home = Folders.of_user({"PINYON_HOME": folder})
        started = time.perf_counter()
        speed = asyncio.run(measure_speed(home, threads))
        probe_s = time.perf_counter() - started
        say(f"{len(speed.weight_s)} weight types in {probe_s:.1f} s; memory {speed.memory_bytes_per_s / 1e9:.1f} GB/s")
        files = [file for model in arguments.model for file in variants(model, Path(folder), threads)]
        result = compare(files, speed, threads, arguments.rounds)
    finish({"files": len(files), "threads": threads, "probe_s": round(probe_s, 1), **result})


if __name__ == "__main__":
    main()
