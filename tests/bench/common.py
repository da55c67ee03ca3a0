"""What the benchmarks share: arguments, statistics of paired runs, and the one JSON object on the last line."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn


def parse_arguments(
    description: str, *, rounds: int, peer: str | None = None, needs_peer: bool = True
) -> argparse.Namespace:
    """Return `model` and `rounds`; and where there is a program to compare with, described as `peer`, that and its `peer_option`s."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, metavar="FILE", help="GGUF file")
    if peer is not None:
        parser.add_argument("--peer", required=needs_peer, metavar="PROGRAM", help=peer)
        parser.add_argument(
            "--peer-option",
            action="append",
            default=[],
            metavar="OPTION",
            help="for the peer too; --peer-option=--fast",
        )
    parser.add_argument("--rounds", type=int, default=rounds, help="alternating pairs of runs (default %(default)s)")
    return parser.parse_args()


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the median of the pairs' ratios, and the distance between their quartiles as noise."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return round(statistics.median(ratios), 4), round(quartiles[2] - quartiles[0], 4)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Stopwatch:
    """Sums the time spent inside the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: type, name: str) -> None:
        inner = getattr(owner, name)

        def timed(*args: object, **kwargs: object) -> object:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        setattr(owner, name, timed)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def finish(result: Mapping[str, object]) -> NoReturn:
    """Print the result of a valid run and exit 0."""
    print(json.dumps(result), flush=True)
    sys.exit(0)
