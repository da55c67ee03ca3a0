"""`pinyon run`: one prompt, one answer. stdout carries the answer alone, stderr everything else."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import msgspec

from pinyon.app.ask import Ask, Chat, Prompt, RawText, SamplingChoice
from pinyon.app.backend import Backend
from pinyon.app.cli.answer import Answer, JsonAnswer, Stats, TextAnswer
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.progress import loading
from pinyon.app.errors import AppError, GenerationFailedError, UsageError
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason
from pinyon.models import catalog
from pinyon.models.chat_template import Message
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.service import Model


@dataclass(frozen=True, slots=True)
class _Wish:
    """`model` None is the server's own, or where there is no server the default one."""

    folders: Folders
    settings: Settings
    model: str | None
    context: int | None
    ask: Ask


@click.command(name="run")
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]...")
@click.option("-m", "--model", help="Model to use: a name, an alias or the path of a GGUF file.")
@click.option("--system", metavar="TEXT", help="Instructions that come before the prompt.")
@click.option("--max-tokens", type=int, metavar="N", help="Stop after N tokens; without it, where the context ends.")
@click.option(
    "--context", type=click.IntRange(min=2), metavar="N", help="Context in tokens (default: the model's, at most 8192)."
)
@click.option("--temperature", type=float, metavar="X", help="0 always takes the likeliest token.")
@click.option("--top-p", type=float, metavar="X", help="Draw from the likeliest tokens that make up this probability.")
@click.option("--top-k", type=int, metavar="N", help="Draw from the N likeliest tokens; 0 for all.")
@click.option("--min-p", type=float, metavar="X", help="Leave out tokens below this share of the likeliest one.")
@click.option("--repeat-penalty", type=float, metavar="X", help="Above 1 makes repetition less likely.")
@click.option("--seed", type=int, metavar="N", help="The same seed draws the same tokens.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--stats", is_flag=True, help="Print figures about the answer as a line of JSON on stderr.")
@click.option("--no-cache", is_flag=True, help="Compute the whole prompt, and keep nothing of it.")
@click.option("--private", is_flag=True, help="Write nothing of it to disk.")
@click.option(
    "--deterministic", is_flag=True, help="The same prompt and seed give the same answer, whatever else was asked."
)
@click.option("--no-template", is_flag=True, help="Send the text as it is, without the model's chat template.")
def command(
    words: tuple[str, ...],
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    context: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repeat_penalty: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    as_json: bool,
    stats: bool,
    no_cache: bool,
    private: bool,
    deterministic: bool,
    no_template: bool,
) -> ExitCode:
    """Answer one prompt. Text from a pipe comes before the PROMPT.

    \b
        pinyon run "Why is the sky blue?"
        pinyon run smollm2 "Why is the sky blue?"
        cat notes.txt | pinyon run "Summarise:"

    A first word that names an installed model, or one that can be pulled, is the model.
    """  # noqa: D301  click needs the control character itself
    folders = Folders.of_user()
    settings = load_settings(folders)
    store = Store(folders.models)
    if model is None and words and _names_a_model(store, words[0]):
        model, words = words[0], words[1:]
    ask = Ask(
        prompt=_prompt(_prompt_text(map(_argument_text, words)), system and _argument_text(system), no_template),
        sampling=SamplingChoice(temperature, top_k, top_p, min_p, repeat_penalty, seed),
        max_tokens=max_tokens,
        stop=tuple(map(_argument_text, stop)),
        use_cache=not no_cache,
        private=private,
        deterministic=deterministic or None,
    )
    wish = _Wish(folders, settings, model, context, ask)
    return asyncio.run(_run(wish, JsonAnswer() if as_json else TextAnswer(), stats))


def _names_a_model(store: Store, word: str) -> bool:
    """Whether the word is a model's name, or looks like a model's file; a prompt may be anything else, paths included."""
    is_file_name = word.lower().endswith(".gguf") and not any(map(str.isspace, word))
    return is_file_name or catalog.find(word) is not None or store.knows(word)


def _prompt_text(words: Iterable[str]) -> str:
    """Return what came through a pipe, then the words."""
    parts = [] if sys.stdin.isatty() else [_piped_text()]
    parts.append(" ".join(words))
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UsageError('there is no prompt: give one, as in `pinyon run "Why is the sky blue?"`, or pipe text in')
    return text


def _argument_text(argument: str) -> str:
    """Return an argument as text; where the locale could not decode its bytes, they are UTF-8."""
    try:
        return os.fsencode(argument).decode() if any("\udc80" <= c <= "\udcff" for c in argument) else argument
    except UnicodeDecodeError as error:
        raise UsageError(f"an argument is neither in the locale's encoding nor UTF-8: {error}") from error


def _piped_text() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the text from the pipe is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}; convert it first"
        ) from error


def _prompt(text: str, system: str | None, no_template: bool) -> Prompt:
    if no_template:
        if system is not None:
            raise UsageError("--system needs the chat template that --no-template leaves out: put it into the prompt")
        return RawText(text)
    before = () if system is None else (Message("system", system),)
    return Chat((*before, Message("user", text)))


async def _run(wish: _Wish, answer: Answer, with_stats: bool) -> ExitCode:
    started = time.monotonic()
    async with Backend(wish.folders, wish.settings) as backend:
        with loading(wish.model or wish.settings.model or "the model") as on_progress:
            model = await backend.load(wish.model, wish.context, on_progress)
        load_s = time.monotonic() - started
        try:
            finished = await _generate(model, wish.ask, answer)
        except AppError:
            answer.break_off()
            raise
    stats = Stats.of(model, finished, load_s)
    answer.end(stats)
    if with_stats:
        print(msgspec.json.encode(stats).decode(), file=sys.stderr)
    return ExitCode.INTERRUPTED if finished.reasons == (FinishReason.CANCELLED,) else ExitCode.OK


async def _generate(model: "Model", ask: Ask, answer: Answer) -> Finished:
    """Hand the answer on as it comes; return the last event."""
    with _on_interrupt(lambda: model.cancel(ask.id)):
        async with contextlib.aclosing(model.generate(ask)) as events:
            async for event in events:
                match event:
                    case Chunk():
                        answer.add(event)
                    case Finished():
                        return event
                    case Failed():
                        raise GenerationFailedError(event)
    raise AssertionError("every request ends in Finished or Failed")


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], Coroutine[None, None, None]]) -> Iterator[None]:
    """Let the first Ctrl+C end the answer in good order; a second one ends the program."""
    loop = asyncio.get_running_loop()
    stopping: set[asyncio.Task[None]] = set()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stopping.add(loop.create_task(stop()))

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except NotImplementedError:  # Windows: Ctrl+C ends the program
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
