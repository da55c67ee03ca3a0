"""Decoding under a JSON Schema of twenty fields over decoding without one: tokens per second, worker process included.

Greedy answers of 128 tokens to the same prompts, counted from the first token to the last; several at once add up. Runs
alternate; a batch's ratio is the median of its pairs.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
from pathlib import Path

from common import finish, paired_ratio, parse_arguments, say

from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Chunk, Failed, Finished
from pinyon.engine.grammar import json_schema
from pinyon.engine.grammar_check import GrammarChecker
from pinyon.engine.request import GenerateRequest, Grammar, SamplingParams, Speculate, Text
from pinyon.models.machine.cores import read_cores

BATCHES = (1, 8)
ANSWER_TOKENS = 128
CELLS = 4096


def text(shortest: int, longest: int) -> dict[str, object]:
    return {"type": "string", "minLength": shortest, "maxLength": longest}


PROPERTIES = {
    "title": text(8, 60),
    "summary": text(40, 160),
    "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
    "in_print": {"type": "boolean"},
    "language": {"enum": ["English", "French", "German", "Spanish", "Italian"]},
    "authors": {"type": "array", "items": text(3, 30), "minItems": 1, "maxItems": 3},
    "publisher": text(3, 40),
    "pages": {"type": "integer", "minimum": 1, "maximum": 3000},
    "illustrated": {"type": "boolean"},
    "binding": {"enum": ["hardcover", "paperback", "spiral"]},
    "subjects": {"type": "array", "items": text(3, 20), "minItems": 2, "maxItems": 4},
    "edition": {"type": "integer", "minimum": 1, "maximum": 50},
    "translated": {"type": "boolean"},
    "audience": {"enum": ["children", "students", "adults"]},
    "chapters": {"type": "array", "items": text(5, 40), "minItems": 2, "maxItems": 5},
    "price_cents": {"type": "integer", "minimum": 0, "maximum": 100000},
    "award_winning": {"type": "boolean"},
    "condition": {"enum": ["new", "good", "worn"]},
    "review": text(20, 200),
    "shelf": text(2, 10),
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}
SUBJECTS = ("the sea", "old clocks", "bread", "the moon", "bees", "chess", "glass", "rivers")


async def decode_rate(client: EngineClient, batch: int, grammar: Grammar | None, run: str) -> float:
    """Return the tokens per second of all answers together; the first token of each belongs to its prefill."""

    async def one(index: int) -> float:
        request = GenerateRequest(
            f"{run}-{index}",
            (Text(f"A library's record of a book about {SUBJECTS[index]}, as JSON:\n"),),
            SamplingParams(temperature=0),
            max_tokens=ANSWER_TOKENS,
            ignore_eos=grammar is None,
            speculate=Speculate.OFF,
            grammar=grammar,
            use_cache=False,
        )
        shown = ""
        async for event in client.generate(request):
            match event:
                case Chunk(text=piece):
                    shown += piece
                case Failed(message=message):
                    raise SystemExit(f"invalid run: {message}")
                case Finished(usage=usage, timings=timings):
                    check(shown, usage.completion_tokens, is_record=grammar is not None)
                    return (usage.completion_tokens - 1) / timings.decode_s
        raise AssertionError("every request ends in Finished or Failed")

    return sum(await asyncio.gather(*map(one, range(batch))))


def check(answer: str, tokens: int, *, is_record: bool) -> None:
    """End the run if an answer is not the beginning of a record, or a whole one is too short to measure."""
    if tokens != ANSWER_TOKENS:
        raise SystemExit(f"invalid run: an answer ended after {tokens} of {ANSWER_TOKENS} tokens")
    places = [answer.find(f'"{name}":') for name in PROPERTIES]
    reached = [*itertools.takewhile(lambda place: place >= 0, places)]
    if is_record and not (answer.startswith("{") and reached and reached == sorted(reached)):
        raise SystemExit(f"invalid run: the schema does not show in {answer!r}")


async def measure(model: str, rounds: int) -> dict[str, object]:
    threads = read_cores().threads
    log = Path(tempfile.mkdtemp()) / "engine.log"
    grammar = await GrammarChecker().check(json_schema(SCHEMA))
    client = EngineClient(EngineConfig(os.fsencode(model), threads, CELLS), log)
    await client.start()
    result: dict[str, object] = {"model": Path(model).name, "threads": threads, "rounds": rounds}
    try:
        for batch in BATCHES:
            held, free = [], []
            for turn in range(rounds + 1):
                held_rate = await decode_rate(client, batch, grammar, f"held-{batch}-{turn}")
                free_rate = await decode_rate(client, batch, None, f"free-{batch}-{turn}")
                if turn:  # the first pair warms up
                    held.append(held_rate)
                    free.append(free_rate)
                    say(f"batch {batch}: {held_rate:.1f} tok/s under the schema, {free_rate:.1f} without")
            result[f"ratio_{batch}"], result[f"ratio_{batch}_noise"] = paired_ratio(held, free)
            result[f"schema_tokens_per_s_{batch}"] = round(statistics.median(held), 1)
    finally:
        await client.close()
    return result


if __name__ == "__main__":
    arguments = parse_arguments(__doc__, rounds=15)
    finish(asyncio.run(measure(arguments.model, arguments.rounds)))
