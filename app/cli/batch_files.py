"""The two files of a batch: lines of JSON that ask, and lines of JSON that answer."""

import codecs
import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import msgspec

from pinyon.app.ask import Ask, Chat
from pinyon.app.errors import UsageError
from pinyon.app.locks import LockHeldError, locked
from pinyon.app.named_options import named_options
from pinyon.engine.request import Priority
from pinyon.models.chat_template import Message
from pinyon.models.disk import printable, write_atomically

_ANSWER_BEGINS: Final = b'{"id":'


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the input: a prompt, or the messages of a conversation. Without an `id`, it is the line's number."""

    id: str | int | None = None
    prompt: str | None = None
    messages: tuple[Said, ...] | None = None
    system: str | None = None
    options: dict[str, float | int | str] = {}

    def chat(self, system: str | None) -> Chat:
        """Return the messages; `system` comes first where there are no instructions. Raises UsageError."""
        if (self.prompt is None) == (self.messages is None) or self.messages == ():
            raise UsageError("it needs a prompt or messages, and not both")
        said = [Said("user", self.prompt)] if self.prompt is not None else [*(self.messages or ())]
        has_system = any(message.role == "system" for message in said)
        if has_system and self.system is not None:
            raise UsageError("it has instructions twice: as system, and as a message")
        instructions = system if self.system is None else self.system
        if instructions is not None and not has_system:
            said.insert(0, Said("system", instructions))
        return Chat(tuple(Message(message.role, message.content) for message in said))


class Answered(msgspec.Struct, frozen=True):
    """What a line of the output says about itself; `asked` is the SHA-256 of all that it answers."""

    id: str | int
    asked: str


@dataclass(frozen=True, slots=True)
class Question:
    id: str | int
    ask: Ask

    def answered(self, model: str) -> Answered:
        """Return how the answer of a model names what it answers: the prompt and all that decides, but chance."""
        told = msgspec.structs.replace(self.ask, id="", private=False, use_cache=True)
        return Answered(self.id, hashlib.sha256(msgspec.json.encode((model, told))).hexdigest())


def read_questions(source: Path, system: str | None, options: Mapping[str, str]) -> list[Question]:
    """Return what the lines ask; `system` and `options` are for those that have none.

    Raises:
        UsageError: a line that cannot be asked; the message names it.
    """
    try:
        lines = source.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise UsageError(f"{printable(source)} cannot be read: {error.strerror}") from None
    questions: dict[str | int, Question] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            question = _question(text, number, system, options)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError) as error:
            raise UsageError(f"{printable(source)}, line {number:,}: {error}") from None
        if question.id in questions:
            raise UsageError(f"{printable(source)}, line {number:,}: the id {question.id!r} was there before")
        questions[question.id] = question
    return [*questions.values()]


def _question(text: bytes, number: int, system: str | None, options: Mapping[str, str]) -> Question:
    line = msgspec.json.decode(text, type=Line)
    choices = named_options({**options, **line.options})
    ask = Ask(line.chat(system), choices.sampling, choices.max_tokens, priority=Priority.BATCH)
    return Question(number if line.id is None else line.id, ask)


class Output(NamedTuple):
    """What an output holds: its answers, and how many bytes they are, without a line that a kill has cut off."""

    answered: dict[str | int, Answered]
    size_bytes: int


def read_output(target: Path) -> Output:
    """Return what an output holds; nothing where it is not there yet.

    Raises:
        UsageError: it has lines that are no answers of a batch, or cannot be read.
    """
    if target.exists() and not target.is_file():
        raise UsageError(f"{printable(target)} is not a regular file: name another one")
    try:
        data = target.read_bytes()
    except FileNotFoundError:
        return Output({}, 0)
    except OSError as error:
        raise UsageError(f"{printable(target)} cannot be read: {error.strerror}") from None
    end = data.rfind(b"\n") + 1
    try:
        answered = [msgspec.json.decode(line, type=Answered) for line in data[:end].splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UsageError(f"{printable(target)} has lines that are no answers of a batch: name another file") from None
    if end < len(data) and not _may_be_cut_off(data[end:]):
        raise UsageError(f"{printable(target)} is no output of a batch: name another file")
    return Output({each.id: each for each in answered}, end)


@contextlib.contextmanager
def appended(target: Path, output: Output) -> Iterator[BinaryIO]:
    """Yield the output after its last whole line; it is made where it is missing. Raises UsageError."""
    try:
        file = target.open("ab")
    except OSError as error:
        raise UsageError(f"{printable(target)} cannot be written: {error.strerror}") from None
    with file:
        file.truncate(output.size_bytes)
        yield file


@contextlib.contextmanager
def held(target: Path, batches: Path) -> Iterator[None]:
    """Be the only batch that writes an output. In the folder `batches` they tell each other what they write.

    Raises:
        UsageError: another process writes it; the message names it.
        OSError: the folder cannot be used.
    """
    name = hashlib.sha256(os.fsencode(target.resolve())).hexdigest()
    holder = batches / f"{name}.pid"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(batches / f"{name}.lock"))
        except LockHeldError:
            who = "another batch"
            with contextlib.suppress(OSError):  # it begins or ends just now
                who = f"process {printable(holder.read_text())}"
            raise UsageError(f"{who} writes {printable(target)}: wait for its end, or name another file") from None
        write_atomically(holder, str(os.getpid()).encode())
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)


def _may_be_cut_off(line: bytes) -> bool:
    """Whether a last line may be the beginning of an answer, and is not a whole line of something else."""
    if not _ANSWER_BEGINS.startswith(line[: len(_ANSWER_BEGINS)]):
        return False
    try:
        return "asked" in msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
