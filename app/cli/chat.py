"""`pinyon chat`: a conversation on the terminal."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from pinyon.app.cli import completion, options
from pinyon.app.cli.exchange import last_conversation
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.first_model import offer_a_model
from pinyon.app.cli.terminal import tell
from pinyon.app.default_model import model_before
from pinyon.app.errors import UsageError
from pinyon.app.first_run import is_first_run
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.tui.app import ChatApp

HANG_UP_S: Final = 3.0
"""How long leaving in good order may take once the terminal is gone."""


@dataclass(frozen=True, slots=True)
class Chat:
    """How a chat is opened. `model` None is the one of the conversation that it `continues`, else the settings' or the latest."""

    folders: Folders
    settings: Settings
    model: str | None = None
    context: int | None = None
    private: bool = False
    plain: bool = False
    continues: bool = False
    is_forced: bool = False


@click.command(name="chat")
@click.argument("model", required=False, shell_complete=completion.models)
@click.option("-c", "--continue", "continues", is_flag=True, help="Go on with the last conversation.")
@click.option("--private", is_flag=True, help="Keep nothing: no history, nothing computed on disk.")
@click.option(
    "--plain", is_flag=True, help="Lines in, lines out: for screen readers, and terminals that can do no more."
)
@options.context
@options.force
def command(
    model: str | None, continues: bool, private: bool, plain: bool, context: int | None, is_forced: bool
) -> ExitCode:
    """Chat with a model, in the terminal.

    F1 shows the keys, Ctrl+P all that can be done, / the commands.
    """
    folders = Folders.of_user()
    chat = Chat(folders, load_settings(folders), model, context, private, plain, continues, is_forced)
    return open_chat(chat)


def open_chat(chat: Chat) -> ExitCode:
    """Run a chat until the user leaves it.

    Raises:
        UsageError: there is no terminal to chat on, or no conversation to go on with.
        Exception: a fault in the chat itself; the terminal is as it was before.
    """
    if not chat.plain and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("a chat needs a terminal: `pinyon run` answers in pipes, `pinyon chat --plain` reads lines")
    if chat.continues and chat.private:
        raise UsageError("--private keeps nothing and knows nothing: leave out --continue")
    if chat.model is None and offer_a_model(chat.folders, chat.settings) and is_first_run(chat.folders, chat.settings):
        return ExitCode.MODEL
    return asyncio.run(_chat(chat))


async def _chat(chat: Chat) -> ExitCode:
    from pinyon.app.backend import Backend  # noqa: PLC0415  with the history below, what takes its time to import
    from pinyon.app.conversing import Choices  # noqa: PLC0415
    from pinyon.app.history.history import History  # noqa: PLC0415

    is_kept = chat.settings.history and not chat.private
    with History(chat.folders.history_file, tell) if is_kept else History.in_memory() as history:
        before = last_conversation(history) if chat.continues else None
        conversation = None if before is None else before.id
        model = chat.model
        if before is not None and model is None:
            model = model_before(Store(chat.folders.models), before.model)
        async with Backend(chat.folders, chat.settings, is_forced=chat.is_forced) as backend:
            if chat.plain:
                from pinyon.app.tui.plain import PlainChat  # noqa: PLC0415

                plain = PlainChat(
                    history,
                    backend,
                    chat.folders,
                    chat.settings,
                    model=model,
                    context=chat.context,
                    choices=Choices(private=chat.private),
                )
                return await plain.run(conversation)
            from pinyon.app.tui.app import ChatApp  # noqa: PLC0415  brings Textual
            from pinyon.app.tui.chat_screen import ChatScreen  # noqa: PLC0415

            # What was imported stays. To look through it for garbage, again and again, stops the screen for 50 ms each time.
            gc.freeze()
            screen = ChatScreen(
                history,
                backend,
                chat.folders,
                chat.settings,
                model=model,
                context=chat.context,
                choices=Choices(private=chat.private),
                conversation=conversation,
            )
            app = ChatApp(screen, chat.settings)
            try:
                with _ending_by_signal(app):
                    await app.run_async()
            finally:
                await screen.dialogue.close()
    if app.fault is not None:
        raise app.fault
    return ExitCode.OK


@contextlib.contextmanager
def _ending_by_signal(app: "ChatApp") -> Iterator[None]:
    """Leave in good order, with the terminal as it was, when the system or the terminal's window ends the program."""
    loop = asyncio.get_running_loop()

    def leave(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(app.exit)

    def hang_up(number: int, frame: object) -> None:
        # What writes to the terminal may have died with it, and who waits for that waits for ever.
        last_moment = threading.Timer(HANG_UP_S, os._exit, (128 + number,))
        last_moment.daemon = True
        last_moment.start()
        leave(number, frame)

    handlers = {"SIGTERM": leave, "SIGHUP": hang_up}
    before = {
        number: signal.signal(number, handler)
        for name, handler in handlers.items()
        if (number := getattr(signal, name, None)) is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
