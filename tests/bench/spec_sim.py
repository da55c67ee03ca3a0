"""How far is the depth of drafts from the best fixed one known in hindsight, on machines that are only simulated?

Each machine has its own curve of what a step costs, with noise; how often drafted tokens come true is steady, or drifts, or jumps. The
controller knows neither: it learns both as it goes, as in the engine. `regret` is the largest share of speed that it loses.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
from common import finish, say

from pinyon.engine.acceptance import Acceptance
from pinyon.engine.calibration import ROWS as CALIBRATED
from pinyon.engine.cost_model import CostModel
from pinyon.engine.draft_depth import depths
from pinyon.engine.step_cost import LONGEST_S

TOKENS = 6_000
MAX_DRAFT = 63
NOISE = 0.06
CLIENTS = (1, 4)


def laptop(rows: int) -> float:
    """Eight cores: memory-bound up to a few rows, then kernels in groups of four."""
    return 0.055 + 0.0052 * 4 * math.ceil(max(0, rows - 4) / 4)


def mac(rows: int) -> float:
    """Metal: flat up to eight rows, a jump where the matrix kernel takes over, cheap in bulk from there on."""
    return 0.018 + 0.0011 * rows if rows <= 8 else 0.034 + 0.00035 * rows


def gpu(rows: int) -> float:
    """A consumer GPU: weights are read once for all rows, up to sixty or so."""
    return 0.009 + 0.00006 * rows


def slow(rows: int) -> float:
    """Two cores: computing is the limit from the first row on."""
    return 0.05 + 0.009 * (rows - 1)


MACHINES: dict[str, Callable[[int], float]] = {"laptop": laptop, "mac": mac, "gpu": gpu, "slow": slow}
STEADY = (0.3, 0.5, 0.7, 0.85, 0.95)


def drifting(at: int) -> float:
    return 0.625 + 0.325 * math.sin(2 * math.pi * at / 2_000)


def jumping(at: int) -> float:
    return 0.3 if at // 700 % 2 else 0.95


RATES: dict[str, Callable[[int], float]] = {
    **{f"{rate}": (lambda _at, rate=rate: rate) for rate in STEADY},  # type: ignore[misc]
    "drifting": drifting,
    "jumping": jumping,
}


class Text:
    """Which tokens of an answer a drafter would have foreseen, drawn once: the same for whoever writes it."""

    def __init__(self, rate: Callable[[int], float], seed: int) -> None:
        dice = random.Random(seed)
        self.foreseen = [dice.random() < rate(at) for at in range(TOKENS + MAX_DRAFT + 1)]

    def accepted(self, at: int, depth: int) -> int:
        """Return how many tokens of a draft at a position come true."""
        return next((number for number in range(depth) if not self.foreseen[at + number]), depth)


def fixed_speed(machine: Callable[[int], float], texts: Sequence[Text], depth: int) -> float:
    """Return tokens a second with drafts of one depth for everybody, noise left out."""
    tokens, seconds = 0, 0.0
    places = [0] * len(texts)
    while min(places) < TOKENS:
        seconds += machine(len(texts) * (1 + depth))
        for number, text in enumerate(texts):
            gained = 1 + text.accepted(places[number] % TOKENS, depth)
            places[number] += gained
            tokens += gained
    return tokens / seconds


def controlled_speed(machine: Callable[[int], float], texts: Sequence[Text], dice: random.Random) -> float:
    """Return tokens a second as the controller decides."""
    costs, everywhere = CostModel(), Acceptance()
    for rows in CALIBRATED:
        costs.measure_step(rows, 0, machine(rows) * dice.lognormvariate(0, NOISE))
    acceptances = [Acceptance(everywhere) for _ in texts]
    places, ends = [0] * len(texts), [2] * len(texts)
    tokens, seconds = 0, 0.0
    while min(places) < TOKENS:
        chances = [each.chances(min(end, 64), MAX_DRAFT) for each, end in zip(acceptances, ends, strict=True)]

        def predicted(rows: np.ndarray, _chosen: np.ndarray) -> np.ndarray:
            return costs.steps_s(len(texts) + rows, np.zeros(len(rows)))

        chosen = depths(chances, predicted, rows=64 - len(texts), limit_s=LONGEST_S)
        rows = len(texts) + sum(chosen.each)
        taken_s = machine(rows) * dice.lognormvariate(0, NOISE)
        costs.measure_step(rows, 0, taken_s)
        seconds += machine(rows)
        for number, (text, depth) in enumerate(zip(texts, chosen.each, strict=True)):
            at = places[number] % TOKENS
            accepted = text.accepted(at, depth)
            for more in range(accepted + 1):  # one more is seen for nothing
                came_true = text.foreseen[at + more]
                acceptances[number].take(min(ends[number] + more, 64), came_true=came_true)
            ends[number] = ends[number] + accepted + 1 if text.foreseen[at + accepted] else 2
            places[number] += accepted + 1
            tokens += accepted + 1
    return tokens / seconds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    regrets = {}
    for name, machine in MACHINES.items():
        for clients in CLIENTS:
            deepest = min(MAX_DRAFT, 64 // clients - 1)
            for rate, chance in RATES.items():
                texts = [Text(chance, seed) for seed in range(clients)]
                fixed = {
                    depth: fixed_speed(machine, texts, depth)
                    for depth in (*range(17), 24, 32, 48, 63)
                    if depth <= deepest
                }
                best = max(fixed, key=lambda depth: fixed[depth])
                ours = controlled_speed(machine, texts, random.Random(1))
                regrets[f"{name}, {clients}, {rate}"] = regret = 1 - ours / fixed[best]
                say(
                    f"{name}, {clients} at once, {rate}: best depth {best}, {fixed[best]:.0f} tokens/s, ours {ours:.0f}, plain {fixed[0]:.0f}: {regret:+.1%}"
                )
    worst = max(regrets, key=lambda cell: regrets[cell])
    finish(
        {
            "regret": round(regrets[worst], 4),
            "worst": worst,
            "cells": {cell: round(regret, 4) for cell, regret in regrets.items()},
        }
    )


if __name__ == "__main__":
    main()
