"""Sixteen requests that need four times the cells there are: do all end, and is anything else in their KV and logits than alone?

All KV is watched by its bytes, as in tests/engine/equivalence. The tokens of the answers are given, so that each of their logits can
be compared; they may be twice as far from those of a request alone as they are where all are computed together and have room.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from common import finish, parse_arguments, say

sys.path.append(str(Path(__file__).parents[1] / "support"))
from dictation import Dictation, Seen, distances
from kv_bytes import KvDiffersError, KvWitness

from pinyon.engine.config import EngineConfig, Limits
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Tokens
from pinyon.models.machine.cores import read_cores

REQUESTS = 16
PROMPT_TOKENS, ANSWER_TOKENS = 128, 128
NEEDED_TOKENS = REQUESTS * (PROMPT_TOKENS + ANSWER_TOKENS)
CONTEXT_TOKENS = NEEDED_TOKENS // 4
EVERY = 64
"""Of the logits, one in so many is compared."""


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=1)
    path, dice = Path(arguments.model), random.Random(1)
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:

        def load(context_tokens: int) -> LoadedEngine:
            config = EngineConfig(
                os.fsencode(path), read_cores().threads, context_tokens, 1 << 30, limits=Limits(long_share=1.0)
            )
            return load_engine(config, path, NativeLog(log))

        result = {"failed": 0, "kv_mismatches": 0, "logit_mismatches": 0, "preempted": 0, "reused_cells": 0}
        noises, furthest = [], []
        for _ in range(arguments.rounds):
            roomy, tight = load(NEEDED_TOKENS), load(CONTEXT_TOKENS)

            def drawn(number: int, vocab_size: int = roomy.info.vocab_size) -> tuple[int, ...]:
                return tuple(dice.randrange(1000, vocab_size) for _ in range(number))

            requests = [
                GenerateRequest(
                    f"{number}",
                    (Tokens(drawn(PROMPT_TOKENS)),),
                    SamplingParams(),
                    ANSWER_TOKENS,
                    ignore_eos=True,
                    speculate=Speculate.OFF,
                )
                for number in range(REQUESTS)
            ]
            answers = {request.id: drawn(ANSWER_TOKENS) for request in requests}
            dictation = Dictation(roomy.engine, answers, EVERY)
            apart = [msgspec.structs.replace(request, use_cache=False) for request in requests]
            alone: Seen = {}
            for request in apart:
                alone |= dictation.take([request])
            noise = distances(alone, dictation.take(apart)).max()
            say(f"beside one another, logits are up to {noise:.3f} from those alone")

            tight.engine._scheduler._lengths._mean = 1.0  # admit as if answers were short: they will not fit
            witness = KvWitness()
            witness.watch(tight)
            dictation = Dictation(tight.engine, answers, EVERY)
            try:
                seen = dictation.take(requests)
                witness.compare_all()
            except KvDiffersError as error:
                say(str(error))
                result["kv_mismatches"] += 1
                continue
            result["failed"] += len(dictation.failed)
            far = distances(alone, {name: answer for name, answer in seen.items() if name not in dictation.failed})
            result["logit_mismatches"] += int(np.sum(~(far <= 2 * noise)))
            result["preempted"] += tight.engine.meters().service.preempted
            result["reused_cells"] += sum(witness.cells.values())
            noises.append(round(float(noise), 3))
            furthest.append(round(float(far.max()), 3))
            say(str(result))
            for loaded in (roomy, tight):
                loaded.engine.close()
                loaded.close()
    if not result["preempted"] and not result["kv_mismatches"]:
        raise SystemExit("invalid run: nobody was preempted")
    finish(
        {
            "model": path.name,
            "requests": REQUESTS,
            "cells": CONTEXT_TOKENS,
            **result,
            "logits_compared": arguments.rounds * REQUESTS * ANSWER_TOKENS,
            "shape_noise": noises,
            "furthest": furthest,
        }
    )


if __name__ == "__main__":
    main()
