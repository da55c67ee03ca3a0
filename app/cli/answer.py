"""How an answer is printed: as streamed text, or as one JSON object at its end; and the figures about it."""

import sys
from typing import Protocol

import msgspec

from pinyon.app.cli.terminal import for_stdout
from pinyon.engine.config import EngineInfo
from pinyon.engine.events import Finished


class Stats(msgspec.Struct, frozen=True):
    """Figures about one answer: tokens, seconds, tokens per second. `context_tokens` is the room that was loaded."""

    model: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    context_tokens: int
    seed: int | None
    threads: int
    load_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float

    @classmethod
    def of(cls, model: str, info: EngineInfo, finished: Finished, load_s: float) -> "Stats":
        usage, timings = finished.usage, finished.timings
        return cls(
            model=model,
            finish_reason=finished.reasons[0],
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            context_tokens=info.context_tokens,
            seed=finished.seed,
            threads=info.threads,
            load_s=round(load_s, 3),
            queue_s=round(timings.queue_s, 3),
            prefill_s=round(timings.prefill_s, 3),
            decode_s=round(timings.decode_s, 3),
            prompt_tokens_per_s=_rate(usage.prompt_tokens, timings.prefill_s),
            # The first token belongs to the prefill.
            tokens_per_s=_rate(usage.completion_tokens - 1, timings.decode_s),
        )


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 1) if tokens > 0 and seconds > 0 else 0.0


class Answer(Protocol):
    def add(self, text: str) -> None:
        """Take the next part of the text."""

    def end(self, stats: Stats) -> None:
        """The answer is complete, or was stopped."""

    def break_off(self) -> None:
        """There will be no more, and an error follows on stderr."""


class TextAnswer:
    """Prints text as it comes; ends it with a newline."""

    def __init__(self) -> None:
        self._at_line_start = True

    def add(self, text: str) -> None:
        sys.stdout.write(for_stdout(text))
        sys.stdout.flush()
        if text:
            self._at_line_start = text.endswith("\n")

    def end(self, stats: Stats) -> None:  # noqa: ARG002
        self.break_off()

    def break_off(self) -> None:
        if not self._at_line_start:
            self.add("\n")


class JsonAnswer:
    """Prints one object: the figures, and the text first."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)

    def end(self, stats: Stats) -> None:
        print(msgspec.json.encode({"text": "".join(self._parts), **msgspec.structs.asdict(stats)}).decode(), flush=True)

    def break_off(self) -> None:
        """An error leaves stdout empty: half an answer is no JSON object that a script should take for a whole one."""
