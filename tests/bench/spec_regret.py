"""Are drafts ever slower than none, and is their depth the right one? Kinds of text, temperatures and numbers of clients, by turns.

For each cell the speed of one step loop with drafts as the engine decides (`auto`), and with drafts of fixed depths, over the same without any:
`auto_worst` is the least ratio of `auto`, `auto_over_best` the least of `auto` over the best fixed depth of its cell, which is known in
hindsight only. Sampled answers differ from run to run, so speeds are in tokens a second.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import finish, parse_arguments, say
from spec_edit import PROMPT as EDIT
from spec_edit import source_of

from pinyon.engine.config import EngineConfig
from pinyon.engine.draft_depth import Depths, Seconds
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Text
from pinyon.engine.step_cost import Floats
from pinyon.models.machine.cores import read_cores

CONTEXT_TOKENS = 8192
TOKENS = 128
TEMPERATURES = (0.0, 0.7, 1.0)
CLIENTS = (1, 4)
FIXED = (2, 4, 8, 16, 48)
CHAT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
RECORDS = ", ".join(
    f'{{"id": {number}, "name": "item {number}", "price": {number * 7 % 90}.50}}' for number in range(12)
)


def prompts() -> dict[str, str]:
    """Return a prompt for each kind of text."""
    return {
        "edit": EDIT.format(task="Rename the parameter `a` to `items` everywhere.", source=source_of("bisect")),
        "prose": "The old lighthouse keeper had not spoken to anyone for a year. One evening in November he",
        "json": CHAT.format(question=f"Continue this JSON list with twelve more items of the same form: [{RECORDS},"),
        "chat": CHAT.format(question="What should I look at when I buy a used bicycle?"),
    }


def fixed(depth: int):
    """Return draft_depth.depths with one depth for everybody, as far as there are drafts and rows."""

    def depths(chances: Sequence[Floats], _seconds: Seconds, *, rows: int, limit_s: float) -> Depths:
        return Depths([min(depth, len(each), rows // len(chances)) for each in chances], 1.0, 1.0)

    return depths


def speed(loaded: LoadedEngine, text: str, sampling: SamplingParams, clients: int, speculate: Speculate) -> float:
    """Return the tokens a second of so many answers at once, from the step after the last prompt on."""
    engine = loaded.engine
    for client in range(clients):
        request = GenerateRequest(
            f"{client}",
            (Text(text, special=True),),
            sampling,
            max_tokens=TOKENS,
            ignore_eos=True,
            client=f"{random.random()}",  # nobody drafts from what the run before was answered
            speculate=speculate,
        )
        engine.submit(engine.prepare(request))
    while engine.meters().waiting or any(each.is_reading for each in engine._scheduler.running):
        engine.step()
    answers = [choice for answer in engine._answers.values() for choice in answer.open]
    before = sum(each.completion_tokens for each in answers)
    started = time.perf_counter()
    while engine.busy:
        engine.step()
    return (sum(each.completion_tokens for each in answers) - before) / (time.perf_counter() - started)


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=3)
    path, cells = Path(arguments.model), {}
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        config = EngineConfig(os.fsencode(path), read_cores().threads, CONTEXT_TOKENS, kv_ram_cap_bytes=1 << 30)
        loaded = load_engine(config, path, NativeLog(log))
        import pinyon.engine.speculation as speculation

        usual = speculation.depths
        for kind, text in prompts().items():
            for temperature in TEMPERATURES:
                for clients in CLIENTS:
                    sampling = SamplingParams(temperature=temperature)
                    speed(loaded, text, sampling, clients, Speculate.AUTO)
                    ratios: dict[str, list[float]] = {}
                    for _ in range(arguments.rounds):
                        plain = speed(loaded, text, sampling, clients, Speculate.OFF)
                        for name, depths in {"auto": usual, **{f"{depth}": fixed(depth) for depth in FIXED}}.items():
                            speculation.depths = depths  # type: ignore[attr-defined]
                            ratios.setdefault(name, []).append(
                                speed(loaded, text, sampling, clients, Speculate.AUTO) / plain
                            )
                        speculation.depths = usual  # type: ignore[attr-defined]
                    medians = {name: statistics.median(each) for name, each in ratios.items()}
                    best = max((medians[f"{depth}"] for depth in FIXED), default=1.0)
                    cells[f"{kind}, {temperature}, {clients}"] = cell = {
                        "auto": round(medians["auto"], 3),
                        "interval": [round(min(ratios["auto"]), 3), round(max(ratios["auto"]), 3)],
                        "over_best": round(medians["auto"] / max(best, 1.0), 3),
                        **{f"depth {depth}": round(medians[f"{depth}"], 3) for depth in FIXED},
                    }
                    say(f"{kind}, temperature {temperature}, {clients} at once: {cell}")
        loaded.close()
    finish(
        {
            "model": path.name,
            "auto_worst": min(cell["auto"] for cell in cells.values()),
            "auto_over_best": min(cell["over_best"] for cell in cells.values()),
            "cells": cells,
        }
    )


if __name__ == "__main__":
    main()
