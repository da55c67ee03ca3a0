"""`pinyon batch`: many prompts from a file, several at once. What is in the output already is not asked again."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from pinyon.app.cli import completion
from pinyon.app.cli.answer import Stats
from pinyon.app.cli.batch_files import Answered, Question, answers, read_questions
from pinyon.app.cli.ending import on_interrupt
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.first_model import offer_a_model
from pinyon.app.cli.progress import counting, loading
from pinyon.app.cli.prompt_sources import argument_text
from pinyon.app.cli.terminal import printable
from pinyon.app.errors import UsageError
from pinyon.app.named_options import named_values
from pinyon.app.schema_words import schema_of
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.engine import grammar
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason
from pinyon.models.errors import TemplateError

if TYPE_CHECKING:
    from pinyon.app.service import Model

AT_ONCE: Final = 8
"""Answers computed together: more share the same memory and gain little."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be answered by which model, None for the default one; and the file of the answers."""

    folders: Folders
    settings: Settings
    model: str | None
    context: int | None
    questions: Sequence[Question]
    target: Path


@dataclass(slots=True)
class Tally:
    """How far it is. `answered` counts what was there before."""

    answered: int
    failed: int = 0
    is_interrupted: bool = False

    @property
    def done(self) -> int:
        return self.answered + self.failed


@click.command(name="batch")
@click.argument("source", metavar="IN.JSONL", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT.JSONL", type=click.Path(path_type=Path))
@click.option(
    "-m",
    "--model",
    metavar="NAME",
    help="Model to use: a name, an alias or the path of a GGUF file.",
    shell_complete=completion.models,
)
@click.option("-s", "--system", metavar="TEXT", help="Instructions for the lines that have none.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a sampling parameter by its name, or max_tokens, for the lines that do not; repeatable.",
)
@click.option(
    "--schema", metavar="SCHEMA", help="Answer in JSON of this shape: 'name, age int', or a file with JSON Schema."
)
@click.option(
    "--context", type=click.IntRange(min=2), metavar="N", help="Context in tokens (default: the model's, at most 8192)."
)
@click.option("--no-cache", is_flag=True, help="Compute every prompt whole, and keep nothing of it.")
@click.option("--private", is_flag=True, help="Write nothing to disk but the answers.")
def command(
    source: Path,
    target: Path,
    model: str | None,
    system: str | None,
    options: tuple[str, ...],
    schema: str | None,
    context: int | None,
    no_cache: bool,
    private: bool,
) -> ExitCode:
    """Answer each line of IN.JSONL with a line of OUT.JSONL.

    A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}. It may have an "id", a "system" and
    "options" such as {"temperature": 0}. Answers are written as they are ready, with the line's id or number.

    Run it again after an interruption: it goes on with the lines that have no answer yet. The history is not written.
    """
    folders = Folders.of_user()
    settings = load_settings(folders)
    shape = None if schema is None else grammar.json_schema(schema_of(schema))
    instructions = None if system is None else argument_text(system)
    questions = [
        Question(
            question.id,
            msgspec.structs.replace(question.ask, grammar=shape, use_cache=not no_cache, private=private),
        )
        for question in read_questions(source, instructions, named_values(options, "-o"))
    ]
    if model is None:
        offer_a_model(folders, settings)
    tally = asyncio.run(_answer_all(Batch(folders, settings, model, context, questions, target)))
    print(f"pinyon: {tally.answered:,} of {len(questions):,} answered, {tally.failed:,} failed", file=sys.stderr)
    if tally.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if tally.failed else ExitCode.OK


async def _answer_all(batch: Batch) -> Tally:
    from pinyon.app.backend import Backend  # noqa: PLC0415  takes long to import

    with answers(batch.target) as (file, before):
        async with Backend(batch.folders, batch.settings) as backend:
            with loading(batch.model or batch.settings.model or "the model") as on_progress:
                model = await backend.load(batch.model, batch.context, on_progress)
            open_ = [question for question in batch.questions if not _is_there(question, model.name, before)]
            tally = Tally(len(batch.questions) - len(open_))
            with counting("answering", len(batch.questions)) as on_count:
                on_count(tally.done)
                await _answer_open(model, open_, file, tally, on_count)
    return tally


def _is_there(question: Question, model: str, before: dict[str | int, Answered]) -> bool:
    """Whether the output has the answer. Raises UsageError where it has one to something else."""
    if (answered := before.get(question.id)) is None:
        return False
    if answered != question.answered(model):
        raise UsageError(
            f"the output answers {question.id!r} already, but to another prompt, model or option: name another file, or delete that line"
        )
    return True


async def _answer_open(
    model: "Model", questions: Sequence[Question], file: BinaryIO, tally: Tally, on_count: Callable[[int], None]
) -> None:
    """Answer these, some at once, and write each answer as it is ready. The first Ctrl+C ends what runs."""
    waiting = iter(questions)
    running: set[str] = set()

    async def stop() -> None:
        tally.is_interrupted = True
        await asyncio.gather(*(model.cancel(ask_id) for ask_id in running))

    async def work() -> None:
        while not tally.is_interrupted and (question := next(waiting, None)) is not None:
            running.add(question.ask.id)
            try:
                line = await _answer(model, question)
            except _NoAnswerError as error:
                tally.failed += 1
                print(f"pinyon: {question.id!r}: {printable(str(error))}", file=sys.stderr)
            else:
                if line is not None:
                    file.write(line + b"\n")
                    file.flush()
                    tally.answered += 1
            running.remove(question.ask.id)
            on_count(tally.done)

    with on_interrupt(stop):
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(AT_ONCE):
                    workers.create_task(work())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


class _NoAnswerError(Exception):
    """One line has no answer; others may."""


async def _answer(model: "Model", question: Question) -> bytes | None:
    """Return the line that answers; None where it was cancelled. Raises _NoAnswerError."""
    chunks: list[Chunk] = []
    try:
        async with contextlib.aclosing(model.generate(question.ask)) as events:
            async for event in events:
                match event:
                    case Chunk():
                        chunks.append(event)
                    case Failed():
                        raise _NoAnswerError(event.message)
                    case Finished():
                        is_cancelled = event.reasons == (FinishReason.CANCELLED,)
                        return None if is_cancelled else _line(model, question, chunks, event)
    except TemplateError as error:
        raise _NoAnswerError(str(error)) from error
    raise AssertionError("every request ends in Finished or Failed")


def _line(model: "Model", question: Question, chunks: Sequence[Chunk], finished: Finished) -> bytes:
    """The `id` comes first: by that a line is known that was cut off."""
    shown = {**msgspec.structs.asdict(question.answered(model.name)), "text": "".join(chunk.text for chunk in chunks)}
    if reasoning := "".join(chunk.reasoning for chunk in chunks):
        shown["reasoning"] = reasoning
    return msgspec.json.encode({**shown, **msgspec.structs.asdict(Stats.of(model, finished, 0.0))})
