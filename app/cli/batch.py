"""`pinyon batch`: many prompts from a file, several at once. What is in the output already is not asked again."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from pinyon.app.cli import options
from pinyon.app.cli.answer import Stats
from pinyon.app.cli.batch_files import Answered, Question, appended, held, read_output, read_questions
from pinyon.app.cli.ending import on_interrupt
from pinyon.app.cli.exchange import tell_compromises
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.first_model import offer_a_model
from pinyon.app.cli.progress import counting, loading
from pinyon.app.cli.prompt_sources import argument_text
from pinyon.app.cli.terminal import tell
from pinyon.app.default_model import model_before
from pinyon.app.errors import AppError, BusyError, GenerationFailedError, ServerError, UsageError
from pinyon.app.named_options import named_values
from pinyon.app.schema_words import schema_of
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.engine import grammar
from pinyon.engine.errors import EngineError
from pinyon.engine.events import Chunk, Failed, FailureKind, Finished, FinishReason
from pinyon.models.errors import ModelError, TemplateError
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.backend import Backend
    from pinyon.app.service import Model

AT_ONCE: Final = 8
"""Answers computed together: more share the same memory and gain little."""
_LOST: Final = {FailureKind.ENGINE_CRASH, FailureKind.ENGINE_STUCK, FailureKind.LOAD_FAILED}
"""Failures that say nothing about the line that met them."""
_LOST_WITH: Final = (GenerationFailedError, BusyError, ServerError)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be answered by which model, None for the default one; and the file of the answers. The model `is_forced` as Backend's."""

    folders: Folders
    settings: Settings
    model: str | None
    context: int | None
    questions: Sequence[Question]
    target: Path
    is_forced: bool = False


@dataclass(slots=True)
class Tally:
    """How far it is. `answered` counts what was there before; `stopped_by` is why the rest was not asked."""

    total: int
    answered: int
    failed: int = 0
    is_interrupted: bool = False
    stopped_by: Exception | None = None

    @property
    def done(self) -> int:
        return self.answered + self.failed

    @property
    def goes_on(self) -> bool:
        return not self.is_interrupted and self.stopped_by is None

    def __str__(self) -> str:
        left = self.total - self.done
        rest = f", {left:,} left: the same command goes on with them" if left else ""
        return f"{self.answered:,} of {self.total:,} answered, {self.failed:,} failed{rest}"


@click.command(name="batch")
@click.argument("source", metavar="IN.JSONL", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT.JSONL", type=click.Path(path_type=Path))
@options.model
@click.option(
    "-s", "--system", metavar="TEXT", callback=options.filled, help="Instructions for the lines that have none."
)
@click.option(
    "-o",
    "--option",
    "named",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a sampling parameter by its name, or max_tokens, for the lines that do not; repeatable.",
)
@options.schema
@options.context
@options.force
@click.option("--no-cache", is_flag=True, help="Compute every prompt whole, and keep nothing of it.")
@click.option("--private", is_flag=True, help="Write nothing to disk but the answers.")
def command(
    source: Path,
    target: Path,
    model: str | None,
    system: str | None,
    named: tuple[str, ...],
    schema: str | None,
    context: int | None,
    is_forced: bool,
    no_cache: bool,
    private: bool,
) -> ExitCode:
    """Answer each line of IN.JSONL with a line of OUT.JSONL.

    A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}. It may have an "id", a "system" and
    "options" such as {"temperature": 0}. Answers are written as they are ready, with the line's id or number.

    Run it again after an interruption: it goes on with the lines that have no answer yet. The history is not written.
    """
    if Path("-") in {source, target}:
        raise UsageError("a batch needs files: - is none, and could not be gone on with after an interruption")
    folders = Folders.of_user()
    settings = load_settings(folders)
    shape = None if schema is None else grammar.json_schema(schema_of(schema))
    instructions = None if system is None else argument_text(system)
    questions = [
        Question(
            question.id,
            msgspec.structs.replace(question.ask, grammar=shape, use_cache=not no_cache, private=private),
        )
        for question in read_questions(source, instructions, named_values(named, "-o"))
    ]
    if model is None:
        offer_a_model(folders, settings)
    tally = asyncio.run(_answer_all(Batch(folders, settings, model, context, questions, target, is_forced)))
    tell(str(tally))
    if tally.stopped_by is not None:
        raise tally.stopped_by
    if tally.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if tally.failed else ExitCode.OK


async def _answer_all(batch: Batch) -> Tally:
    from pinyon.app.backend import Backend  # noqa: PLC0415  takes long to import

    with held(batch.target, batch.folders.batches):
        before = read_output(batch.target)
        async with Backend(batch.folders, batch.settings, is_forced=batch.is_forced) as backend:
            with loading(batch.model or batch.settings.model or "the model") as on_progress:
                model = await backend.load(batch.model, batch.context, on_progress)
            tell_compromises(model)
            open_ = [question for question in batch.questions if not _is_there(question, model.name, before.answered)]
            tally = Tally(len(batch.questions), len(batch.questions) - len(open_))
            with appended(batch.target, before) as file, counting("answering", tally.total) as on_count:
                on_count(tally.done)
                await _Answering(batch, backend, model, tally).write(open_, file, on_count)
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


class _Answering:
    """Has questions answered, some at once. Where the model is lost it is loaded again, and those that it was lost with are asked
    again one by one: so it is known whose fault that is.
    """

    def __init__(self, batch: Batch, backend: "Backend", model: "Model", tally: Tally) -> None:
        self._batch = batch
        self._backend = backend
        self._model = model
        self._tally = tally
        self._one_alone = asyncio.Lock()
        self._loads = 1
        self._was_lost_alone = False
        self._asked: set[str] = set()
        self._interrupted = asyncio.Event()

    async def write(self, questions: Sequence[Question], file: BinaryIO, on_count: Callable[[int], None]) -> None:
        """Write each answer as it is ready. The first Ctrl+C ends what runs; where the model cannot be had back, no more is asked."""
        waiting, tally = iter(questions), self._tally

        async def work() -> None:
            while tally.goes_on and (question := next(waiting, None)) is not None:
                try:
                    line = await self._answer(question)
                except _NoAnswerError as error:
                    tally.failed += 1
                    tell(f"{question.id!r}: {error}")
                except (AppError, EngineError, ModelError) as error:
                    tally.stopped_by = tally.stopped_by or error
                else:
                    if line is not None:
                        file.write(line + b"\n")
                        file.flush()
                        tally.answered += 1
                on_count(tally.done)

        with on_interrupt(self._stop):
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(AT_ONCE):
                        workers.create_task(work())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _stop(self) -> None:
        self._tally.is_interrupted = True
        self._interrupted.set()
        await asyncio.gather(*(self._model.cancel(ask_id) for ask_id in self._asked))

    async def _answer(self, question: Question) -> bytes | None:
        """Return the line that answers; None where it was cancelled.

        Raises:
            _NoAnswerError: this line has no answer.
            AppError, EngineError, ModelError: no line has one any more.
        """
        async with self._one_alone:
            loads = self._loads
        self._asked.add(question.ask.id)
        try:
            return await self._answer_in_turn(question)
        except _LOST_WITH as error:
            return await self._answer_alone(question, loads, error)
        finally:
            self._asked.remove(question.ask.id)

    async def _answer_in_turn(self, question: Question) -> bytes | None:
        """As `_answer`, once the model has room for it."""
        while self._tally.goes_on:
            try:
                return await _answer(self._model, question)
            except _BusyForNowError as busy:
                await self._pause(busy.retry_after_s)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until nothing more is to be asked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._interrupted.wait()

    async def _answer_alone(self, question: Question, loads: int, error: AppError) -> bytes | None:
        """Answer a question with which the model was lost after so many loads, while no other one is asked. Raises as `_answer`.

        If it is lost again this line has no answer; if that happens with two lines in a row, none has.
        """
        async with self._one_alone:
            if self._loads == loads and self._tally.goes_on:
                await self._load_again(error)
            if not self._tally.goes_on:
                return None
            try:
                line = await self._answer_in_turn(question)
            except _LOST_WITH as again:
                if self._was_lost_alone:
                    raise
                self._was_lost_alone = True
                await self._load_again(again)
                raise _NoAnswerError(f"the model was lost with it twice: {again}") from again
            self._was_lost_alone = False
            return line

    async def _load_again(self, error: AppError) -> None:
        """Load the model that was lost. Raises AppError, EngineError, ModelError."""
        tell(f"{error}; the model is loaded again")
        lost = self._model.name
        name = self._batch.model or model_before(Store(self._batch.folders.models), lost)
        model = await self._backend.load(name, self._batch.context)
        if model.name != lost:
            raise ServerError(f"{lost}, which answered so far, is not here any more by that name; {model.name} is")
        self._model = model
        self._loads += 1


class _NoAnswerError(Exception):
    """One line has no answer; others may."""


class _BusyForNowError(Exception):
    """There is too much to do for this line now."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


async def _answer(model: "Model", question: Question) -> bytes | None:
    """Return the line that answers; None where it was cancelled.

    Raises:
        _NoAnswerError: this line has no answer.
        _BusyForNowError: it may have one later.
        GenerationFailedError, BusyError, ServerError: the model is lost.
    """
    chunks: list[Chunk] = []
    try:
        async with contextlib.aclosing(model.generate(question.ask)) as events:
            async for event in events:
                match event:
                    case Chunk():
                        chunks.append(event)
                    case Failed(kind=FailureKind.OVERLOADED | FailureKind.CLIENT_LIMIT):
                        raise _BusyForNowError(event.data["retry_after_s"])
                    case Failed() if event.kind in _LOST:
                        raise GenerationFailedError(event)
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
