"""How an answer is printed: as text, as JSON, or as lines of JSON; and the figures about it."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from pinyon.app.cli.code_block import first_code_block
from pinyon.app.cli.terminal import for_stdout, print_json, printable
from pinyon.app.errors import AnswerError
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.events import Chunk, Finished, FinishReason, prompt_tokens_per_s, tokens_per_s

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
    speculation: DraftReport
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
            prompt_tokens_per_s=round(prompt_tokens_per_s(usage, timings) or 0.0, 1),
            tokens_per_s=round(tokens_per_s(usage, timings) or 0.0, 1),
            cache=finished.cache,
            speculation=finished.speculation,
            why_no_disk=model.why_no_disk,
        )


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Answer(Protocol):
    def add(self, chunk: Chunk) -> None:
        """Take the next part of the thoughts and the text."""

    def end(self, stats: Stats) -> None:
        """The answer is complete, or was stopped. Raises AnswerError where it cannot be shown as was asked for."""

    def break_off(self) -> None:
        """There will be no more, and an error follows on stderr."""


class Thoughts:
    """Shows what a model thinks on the terminal behind stderr, dim, and nowhere else."""

    def __init__(self, *, hidden: bool) -> None:
        self._hidden = hidden
        self._open = False

    def add(self, reasoning: str) -> None:
        if reasoning and not self._hidden and sys.stderr.isatty():
            self._open = True
            print(f"{_DIM}{printable(reasoning)}{_PLAIN}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The answer begins, or there will be none."""
        if self._open:
            self._open = False
            print("\n", file=sys.stderr, flush=True)


class TextAnswer:
    """Prints text as it comes; ends it with a newline."""

    def __init__(self, *, hide_thoughts: bool = False) -> None:
        self._thoughts = Thoughts(hidden=hide_thoughts)
        self._at_line_start = True

    def add(self, chunk: Chunk) -> None:
        self._thoughts.add(chunk.reasoning)
        if chunk.text:
            self._thoughts.end()
            self._write(chunk.text)

    def end(self, stats: Stats) -> None:  # noqa: ARG002
        self.break_off()

    def break_off(self) -> None:
        self._thoughts.end()
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(for_stdout(text))
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")


class WholeAnswer:
    """Prints the text in one piece at its end, the same bytes as streamed; with `only_code`, its first code block."""

    def __init__(self, *, only_code: bool = False, hide_thoughts: bool = False) -> None:
        self._printed = TextAnswer(hide_thoughts=hide_thoughts)
        self._only_code = only_code
        self._texts: list[str] = []

    def add(self, chunk: Chunk) -> None:
        self._printed.add(msgspec.structs.replace(chunk, text=""))
        self._texts.append(chunk.text)

    def end(self, stats: Stats) -> None:
        text = "".join(self._texts)
        self._printed.add(Chunk(0, code_of(text, stats.finish_reason) if self._only_code else text))
        self._printed.break_off()

    def break_off(self) -> None:
        """What came is shown as it would have been streamed; of code no part, which a script could take for all."""
        if not self._only_code:
            self._printed.add(Chunk(0, "".join(self._texts)))
        self._printed.break_off()


class JsonAnswer:
    """Prints one object: the text first, then the thoughts where there are any, then the figures."""

    def __init__(self, *, only_code: bool = False) -> None:
        self._only_code = only_code
        self._parts: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._parts.append(chunk)

    def end(self, stats: Stats) -> None:
        text = "".join(chunk.text for chunk in self._parts)
        shown = {"text": code_of(text, stats.finish_reason) if self._only_code else text}
        if reasoning := "".join(chunk.reasoning for chunk in self._parts):
            shown["reasoning"] = reasoning
        print_json({**shown, **msgspec.structs.asdict(stats)})

    def break_off(self) -> None:
        """An error leaves stdout empty: half an answer is no JSON object that a script should take for a whole one."""


class JsonLinesAnswer:
    """Prints a line for each part as it comes, and one with the figures, whose type is `end`; without it, it is not whole."""

    def add(self, chunk: Chunk) -> None:
        for kind, text in (("reasoning", chunk.reasoning), ("text", chunk.text)):
            if text:
                print_json({"type": kind, "text": text})

    def end(self, stats: Stats) -> None:
        print_json({"type": "end", **msgspec.structs.asdict(stats)})

    def break_off(self) -> None:
        """The lines that were printed stand."""


class Output(msgspec.Struct, frozen=True):
    """How an answer is printed; with `extract`, its first code block alone."""

    extract: bool
    json: bool
    no_stream: bool
    hide_reasoning: bool
    format: Format | None = None

    @property
    def chosen(self) -> Format:
        return Format.JSON if self.json else self.format or Format.TEXT

    @property
    def contradictions(self) -> dict[str, bool]:
        """Sentences about what was asked for, and whether they are true."""
        is_lines = self.chosen is Format.JSONL
        return {
            "--json is --format json: leave one of them out": self.json and self.format not in {None, Format.JSON},
            "-x needs the whole answer: use --format json or text": self.extract and is_lines,
            "--no-stream waits for the answer, and --format jsonl does not": self.no_stream and is_lines,
        }

    def answer(self) -> Answer:
        """Return what prints an answer so."""
        match self.chosen:
            case Format.JSON:
                return JsonAnswer(only_code=self.extract)
            case Format.JSONL:
                return JsonLinesAnswer()
            case Format.TEXT if self.no_stream or self.extract:
                return WholeAnswer(only_code=self.extract, hide_thoughts=self.hide_reasoning)
            case Format.TEXT:
                return TextAnswer(hide_thoughts=self.hide_reasoning)


def code_of(text: str, finish_reason: str) -> str:
    """Return the first code block of an answer. Raises AnswerError where there is no whole one."""
    code = first_code_block(text)
    if code is None:
        how = "" if finish_reason == FinishReason.STOP else f" (it ended early: {finish_reason})"
        begin = " ".join(text.split())[:80]
        raise AnswerError(f"the answer has no whole code block{how}; it begins: {begin!r}")
    return code
