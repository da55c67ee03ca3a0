"""One prompt and its answer: loads the model, writes both into the history, prints the answer as it comes."""

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pinyon.app.ask import Ask, Chat, RawText
from pinyon.app.attachments import GAP, Attachment, fenced, joined
from pinyon.app.cli.answer import Answer, Stats
from pinyon.app.cli.ending import TimeLimit, at, on_interrupt
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.progress import loading
from pinyon.app.cli.terminal import print_json, printable, tell
from pinyon.app.counted import counted
from pinyon.app.default_model import model_before
from pinyon.app.errors import AnswerError, AppError, GenerationFailedError, UsageError
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.settings import Folders, Settings
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason
from pinyon.models.chat_template import Message
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.history.history import History
    from pinyon.app.history.records import Attached, Conversation
    from pinyon.app.service import Model


STOPPING_S: Final = 2.0
"""How long an answer may take to end once it was told to: a step cannot be interrupted. Past that nobody is there any more."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be answered, and where it is kept.

    `model` None is the server's own, or where there is no server the default one. The messages of a chat in `ask` are those
    that are new; with `continues` they follow the last conversation. `title` names a new one. Unless it `is_kept`,
    nothing is read from the history, and nothing written.
    """

    folders: Folders
    settings: Settings
    model: str | None
    context: int | None
    ask: Ask
    title: str
    is_kept: bool
    attachments: tuple[Attachment, ...] = ()
    continues: bool = False
    limit: TimeLimit = field(default_factory=TimeLimit)
    is_forced: bool = False


async def exchange(wish: Wish, answer: Answer, *, with_stats: bool) -> ExitCode:
    """Have a wish answered and printed; return the exit code.

    Raises:
        AnswerError: the answer was cut off by the time limit, or is not whole JSON or code where that was asked for.
        AppError, EngineError, ModelError: there is none.
    """
    started = time.monotonic()
    async with ready(wish) as (model, history, before):
        load_s = time.monotonic() - started
        attached = await counted_attachments(wish, model)
        _tell_tokens(attached)
        ask, parent = noted(wish, history, before, model.name, attached)
        try:
            async with wish.limit.ends("the answer did not end", STOPPING_S):
                finished, is_late = await _generate(model, history, ask, parent, answer, wish.limit)
        except AppError:
            answer.break_off()
            raise
        stats = Stats.of(model, finished, load_s)
        late = ""
        if is_late:
            tokens = counted(stats.completion_tokens, "token")
            late = f"stopped after {wish.limit.seconds:g} s, with {tokens} of the answer"
        try:
            answer.end(stats)
        except AnswerError as error:
            if late:
                raise AnswerError(f"{late}; {error}") from error
            raise
        finally:
            if with_stats:
                print_json(stats, sys.stderr)
    if late:
        raise AnswerError(late)
    if finished.reasons == (FinishReason.LENGTH,):
        cut = f"the answer was cut off after {counted(stats.completion_tokens, 'token')}"
        if wish.ask.grammar is not None:
            raise AnswerError(f"{cut}, so it is not whole: raise --max-tokens or --context")
        if wish.ask.max_tokens is None:
            tell(
                f"{cut}: the context of {counted(stats.context_tokens, 'token')} is full; raise --context, if the model takes more"
            )
    return ExitCode.INTERRUPTED if finished.reasons == (FinishReason.CANCELLED,) else ExitCode.OK


@contextlib.asynccontextmanager
async def ready(
    wish: Wish, on_trouble: Callable[[str], None] = tell
) -> "AsyncIterator[tuple[Model, History, Conversation | None]]":
    """Yield the loaded model, the history, whose trouble is told, and the conversation that is gone on with.

    Raises:
        UsageError: there is no conversation to go on with.
        HistoryFileError: it cannot be read.
        AnswerError: the time limit passed while the model was loaded.
        AppError, EngineError, ModelError: it cannot be loaded.
    """
    from pinyon.app.backend import Backend  # noqa: PLC0415  takes long to import

    with _history(wish, on_trouble) as history:
        before = last_conversation(history) if wish.continues else None
        named = wish.model or (None if before is None else model_before(Store(wish.folders.models), before.model))
        async with Backend(wish.folders, wish.settings, is_forced=wish.is_forced) as backend:
            with loading(named or wish.settings.model or "the model") as on_progress:
                async with wish.limit.ends("the model was not loaded"):
                    model = await backend.load(named, wish.context, on_progress)
            if before is not None and wish.model is None and model.name != before.model:
                tell(f"{model.name} answers: {before.model}, which did so before, is not here by that name")
            tell_compromises(model)
            yield model, history, before


def tell_compromises(model: "Model") -> None:
    """Tell what was given up so that a model fits."""
    for compromise in model.compromises:
        tell(f"so that {model.name} fits into memory: {compromise}")


def _history(wish: Wish, on_trouble: Callable[[str], None]) -> "History":
    from pinyon.app.history.history import History  # noqa: PLC0415  brings SQLite

    return History(wish.folders.history_file, on_trouble) if wish.is_kept else History.in_memory()


def last_conversation(history: "History") -> "Conversation":
    """Return the conversation that -c goes on with.

    Raises:
        UsageError: there is none.
        HistoryFileError: none can be read.
    """
    if (latest := history.latest()) is not None:
        return latest
    if history.why_not_saved:
        raise HistoryFileError(f"no conversation to go on with could be read: {history.why_not_saved}")
    raise UsageError("there is no conversation to go on with: leave out --continue")


def asked(wish: Wish, history: "History", before: "Conversation | None") -> tuple[Ask, int | None]:
    """Return what the model is asked, with what came before, and the message that this follows."""
    from pinyon.app.conversing import as_chat  # noqa: PLC0415  brings the history, and with it SQLite

    if before is None or not isinstance(wish.ask.prompt, Chat):
        return wish.ask, None
    last = _last_answer(history, before.id)
    earlier = () if last is None else as_chat(history.tree(before.id).path(last)).messages
    prompt = Chat((*earlier, *wish.ask.prompt.messages))
    return msgspec.structs.replace(wish.ask, prompt=prompt, conversation=before.id), last


def noted(
    wish: Wish,
    history: "History",
    before: "Conversation | None",
    model: str,
    attached: Sequence["Attached"],
) -> tuple[Ask, int]:
    """Write what is new into the history. Return what the model is asked, and the message that is answered."""
    from pinyon.app.conversing import title_of  # noqa: PLC0415  brings SQLite
    from pinyon.app.history.records import Role  # noqa: PLC0415

    ask, parent = asked(wish, history, before)
    conversation = (before or history.start(title=title_of(wish.title), model=model)).id
    for message in _new_messages(wish.ask):
        is_user = message.role == "user"
        role = Role.USER if is_user else Role.SYSTEM
        parent = history.add(conversation, parent, role, message.content, attached=attached if is_user else ()).id
    assert parent is not None, "there is something new"
    return msgspec.structs.replace(ask, conversation=conversation), parent


def _new_messages(ask: Ask) -> tuple[Message, ...]:
    match ask.prompt:
        case Chat(messages):
            return messages
        case RawText(text):
            return (Message("user", text),)
    raise AssertionError("no command asks in tokens")


def _last_answer(history: "History", conversation: str) -> int | None:
    """Return the last answer of a conversation that has text: a question that got none is not asked again."""
    from pinyon.app.history.records import Role  # noqa: PLC0415  brings SQLite

    path = history.tree(conversation).path()
    return next((message.id for message in reversed(path) if message.role is Role.ASSISTANT and message.text), None)


async def counted_attachments(wish: Wish, model: "Model") -> list["Attached"]:
    """Count what is attached. Where a template does not put it first, it is a part of the words.

    Raises:
        AnswerError: the time limit passed meanwhile.
        EngineError, AppError: it cannot be counted.
    """
    from pinyon.app.history.records import Attached  # noqa: PLC0415

    texts = [*map(fenced, wish.attachments)]
    is_first = f"{_new_messages(wish.ask)[-1].content}{GAP}".startswith(f"{joined(texts)}{GAP}")
    async with wish.limit.ends("what is attached was not counted"):
        return [
            Attached(file.name, file.size_bytes, await model.count(text), len(text) if is_first else 0)
            for file, text in zip(wish.attachments, texts, strict=True)
        ]


def _tell_tokens(attached: Sequence["Attached"]) -> None:
    if sys.stderr.isatty():
        for file in attached:
            print(f"{printable(file.name)}: {counted(file.tokens, 'token')}", file=sys.stderr)


async def _generate(
    model: "Model", history: "History", ask: Ask, parent: int, answer: Answer, limit: TimeLimit
) -> tuple[Finished, bool]:
    """Hand the answer on as it comes; return the last event, and whether the time limit ended it."""
    from pinyon.app.conversing import written  # noqa: PLC0415  brings SQLite

    def cancel() -> Coroutine[None, None, None]:
        return model.cancel(ask.id)

    assert ask.conversation is not None
    updates = written(history, model, ask.conversation, parent, ask)
    with on_interrupt(cancel), at(limit, cancel) as alarm:
        async with contextlib.aclosing(updates):
            async for _, event in updates:
                match event:
                    case Chunk():
                        answer.add(event)
                    case Finished():
                        return event, alarm.is_over and event.reasons == (FinishReason.CANCELLED,)
                    case Failed():
                        raise GenerationFailedError(event)
    raise AssertionError("every request ends in Finished or Failed")
