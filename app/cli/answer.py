"""How an answer is printed: as streamed text, or as one JSON object at its end; and the figures about it."""

import sys
from typing import TYPE_CHECKING, Protocol

import msgspec

from pinyon.app.cli.terminal import for_stdout, printable
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.events import Chunk, Finished

if TYPE_CHECKING:
    from pinyon.app.service import Model


_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Stats(msgspec.Struct, frozen=True):
    """Figures about one answer: tokens, seconds, tokens per second. `context_tokens` is the room that was loaded.

    `why_no_disk` says why nothing computed is kept on disk; empty where it is.
    """

    model: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    context_tokens: int
    seed: int | None
    threads: int
    load_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    cache: CacheReport
    why_no_disk: str

    @classmethod
    def of(cls, model: "Model", finished: Finished, load_s: float) -> "Stats":
        usage, timings = finished.usage, finished.timings
        return cls(
            model=model.name,
            finish_reason=finished.reasons[0],
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cached_tokens=usage.cached_tokens,
            context_tokens=model.context_tokens,
            seed=finished.seed,
            threads=model.threads,
            load_s=round(load_s, 3),
            queue_s=round(timings.queue_s, 3),
            prefill_s=round(timings.prefill_s, 3),
            decode_s=round(timings.decode_s, 3),
            prompt_tokens_per_s=_rate(usage.prompt_tokens - usage.cached_tokens, timings.prefill_s),
            # The first token belongs to the prefill.
            tokens_per_s=_rate(usage.completion_tokens - 1, timings.decode_s),
            cache=finished.cache,
            why_no_disk=model.why_no_disk,
        )


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 1) if tokens > 0 and seconds > 0 else 0.0


class Answer(Protocol):
    def add(self, chunk: Chunk) -> None:
        """Take the next part of the thoughts and the text."""

    def end(self, stats: Stats) -> None:
        """The answer is complete, or was stopped."""

    def break_off(self) -> None:
        """There will be no more, and an error follows on stderr."""


class TextAnswer:
    """Prints text as it comes; ends it with a newline. Thoughts go to a terminal behind stderr, dim, and nowhere else."""

    def __init__(self) -> None:
        self._at_line_start = True
        self._is_thinking = False

    def add(self, chunk: Chunk) -> None:
        if chunk.reasoning and sys.stderr.isatty():
            self._is_thinking = True
            print(f"{_DIM}{printable(chunk.reasoning)}{_PLAIN}", end="", file=sys.stderr, flush=True)
        if chunk.text:
            self._end_thoughts()
            self._write(chunk.text)

    def end(self, stats: Stats) -> None:  # noqa: ARG002
        self.break_off()

    def break_off(self) -> None:
        self._end_thoughts()
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(for_stdout(text))
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")

    def _end_thoughts(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            print("\n", file=sys.stderr, flush=True)


class JsonAnswer:
    """Prints one object: the text first, then the thoughts where there are any, then the figures."""

    def __init__(self) -> None:
        self._parts: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._parts.append(chunk)

    def end(self, stats: Stats) -> None:
        shown = {"text": "".join(chunk.text for chunk in self._parts)}
        if reasoning := "".join(chunk.reasoning for chunk in self._parts):
            shown["reasoning"] = reasoning
        print(msgspec.json.encode({**shown, **msgspec.structs.asdict(stats)}).decode(), flush=True)

    def break_off(self) -> None:
        """An error leaves stdout empty: half an answer is no JSON object that a script should take for a whole one."""
