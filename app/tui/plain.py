"""`pinyon chat --plain`: the same chat in lines, for screen readers. Nothing is drawn, moved or painted over."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from typing import Final

from pinyon.app.attachments import left_out_of
from pinyon.app.backend import Backend
from pinyon.app.cli.failures import ExitCode, exit_code
from pinyon.app.cli.terminal import for_stdout, printable
from pinyon.app.conversing import Choices
from pinyon.app.errors import GenerationFailedError, UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Message, Role, State
from pinyon.app.search_query import query_of
from pinyon.app.settings import Folders, Settings
from pinyon.app.tui import amounts, commands, reports
from pinyon.app.tui.actions import Actions
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.draft import Draft, Piece, without_mentions
from pinyon.app.tui.turns import EXPECTED
from pinyon.engine.events import Chunk, Event, Failed
from pinyon.models.errors import ModelNotFoundError

SHOWN: Final = 20
"""How many conversations or hits are listed."""
_GO_ON: Final = "/continue"
_SPEAKERS: Final = {Role.SYSTEM: "Instructions", Role.USER: "You", Role.ASSISTANT: "Answer"}


class PlainChat:
    """Reads lines from stdin and writes lines to stdout. A desk for actions, and the dialogue's audience."""

    def __init__(
        self,
        history: History,
        backend: Backend,
        folders: Folders,
        settings: Settings,
        *,
        model: str | None,
        context: int | None,
        choices: Choices,
    ) -> None:
        self.history = history
        self.backend = backend
        self.folders = folders
        self.settings = settings
        self.dialogue = Dialogue(history, backend, self, choices, model, context)
        self.selected: int | None = None
        self._actions = PlainActions(self)
        self._attached: list[Piece] = []
        self._offered = ""
        self._is_open = True
        self._line = ""
        self._fault: Exception | None = None
        self._failure = ExitCode.OK

    async def run(self, conversation: str | None) -> ExitCode:
        """Talk until the user leaves. In a pipe nobody sees what failed first: its exit code is returned. Raises NoConversationError."""
        print("Plain chat. /help lists the commands, Ctrl+C stops an answer, Ctrl+D leaves.")
        await self.dialogue.open(conversation)
        self.dialogue.resume()
        await self._finished()
        while self._is_open and (line := self._read("You: ")) is not None:
            await self._take(line)
            await self._finished()
            if self._fault is not None:
                raise self._fault
        await self.dialogue.close()
        return ExitCode.OK if sys.stdin.isatty() else self._failure

    async def attach(self, path: str) -> None:
        """Send a file, a folder or a URL along with the next message. Raises UsageError, and where its tokens cannot be counted EngineError."""
        piece = await asyncio.to_thread(Piece.of_source, path, urls=self.settings.urls)
        if piece.left_out:
            self.told(left_out_of(path, piece.left_out))
        if (model := self.dialogue.model) is not None:
            piece = replace(piece, tokens=await model.count(piece.text))
        self._attached.append(piece)
        self.told(f"{piece.label} ({amounts.cost(piece.tokens, piece.size_bytes)}) goes along with the next message")

    def detach(self) -> None:
        """Leave out what was attached last. Raises UsageError where nothing is."""
        if not self._attached:
            raise UsageError("nothing is attached")
        self.told(f"{self._attached.pop().label} is left out")

    # The dialogue's audience

    async def opened(self, _at: int | None) -> None:
        for message in self.dialogue.path:
            if message.state is State.STREAMING:
                self.began(message)
                self._hear(message.text)
            else:
                print(_spoken(message))

    async def said(self, message: Message) -> None:
        pass  # the user has just typed it

    def began(self, message: Message) -> None:
        self._line = f"{_SPEAKERS[message.role]}: "

    def heard(self, event: Event) -> None:
        match event:
            case Chunk():
                self._hear(event.text)
            case Failed():
                self._count(GenerationFailedError(event))

    def _hear(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            print(for_stdout(line), flush=True)

    def ended(self, message: Message) -> None:
        print(for_stdout(self._line), flush=True)
        self._line = ""
        if message.state is not State.COMPLETE:
            self._print(f"Error: {message.error}" if message.error else "stopped")
        elif cut := reports.cut_off(message, _GO_ON):
            self._print(cut)

    def changed(self) -> None:
        pass

    def broke(self, error: Exception) -> None:
        self._fault = error

    def needs_model(self, error: ModelNotFoundError) -> None:
        self.failed(error)

    def failed(self, error: Exception, text: str = "") -> None:
        self._count(error)
        self._print(f"Error: {text or error}")

    def _count(self, error: Exception) -> None:
        """Remember with which code the chat ends: the first failure's."""
        self._failure = self._failure or exit_code(error)

    def _print(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    # The actions' desk

    def told(self, text: str) -> None:
        self._print(text)

    async def show(self, title: str, text: str) -> None:
        print(f"{printable(title)}:\n{for_stdout(text)}", flush=True)

    async def ask(self, question: str, value: str) -> str:
        """Return the line that the user gives. Raises UsageError in a pipe, whose next line is no answer to this."""
        if not sys.stdin.isatty():
            raise UsageError(f"{question}: in a pipe that stands on the line of the command")
        hint = f" (now: {value})" if value else ""
        return self.answer(f"{question}{hint}: ")

    def answer(self, prompt: str) -> str:
        """Return the next line; empty at the end of input. Raises UsageError where it is not UTF-8."""
        return _text(self._read(prompt) or "").strip()

    def put(self, text: str) -> None:
        self._offered = text
        print(f"An empty line sends this:\n{for_stdout(text)}")

    def leave(self) -> None:
        self._is_open = False

    async def _take(self, line: str) -> None:
        try:
            text, self._offered = _text(line).strip() or self._offered, ""
            command = commands.slash_command(text)
        except UsageError as error:
            self.failed(error)
            return
        except KeyError as error:
            self.failed(UsageError(f"there is no command {error.args[0]!r}; /help lists them"))
            return
        try:
            if command is not None:
                await self._actions.do(command[0].id, command[1])
            elif text or self._attached:
                await self._say(text)
        except EXPECTED as error:
            self.failed(error)

    async def _say(self, text: str) -> None:
        rest, paths = without_mentions(text)
        for path in paths:
            await self.attach(path)
        going, self._attached = self._attached, []
        self.dialogue.say(Draft(rest, tuple(going)))

    def _read(self, prompt: str) -> str | None:
        """Return the next line; None at the end of input. Nothing else goes on meanwhile."""
        try:
            return input(prompt)
        except (EOFError, KeyboardInterrupt):
            print()
            return None

    async def _finished(self) -> None:
        """Wait until everything is answered; Ctrl+C stops what is being written."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl+C ends the program
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            await self.dialogue.finished()
        finally:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        self._stopping = asyncio.ensure_future(self.dialogue.stop())


class PlainActions(Actions):
    """The actions that are done otherwise in lines: lists are read out, and a number chooses."""

    def __init__(self, chat: PlainChat) -> None:
        super().__init__(chat)
        self._chat = chat

    async def sidebar(self, _argument: str) -> None:
        conversations = self._chat.history.conversations(limit=SHOWN)
        chosen = await self._choose([each.title for each in conversations])
        if chosen is not None:
            await self._chat.dialogue.open(conversations[chosen].id)

    async def search(self, words: str) -> None:
        query = query_of(words or await self._chat.ask("Words", ""))
        found = self._chat.history.search(
            query.words, role=query.role, model=query.model, since=query.since, limit=SHOWN
        )
        chosen = await self._choose([f"{each.conversation.title}: {each.snippet}" for each in found])
        if chosen is not None:
            await self._chat.dialogue.open(found[chosen].conversation.id, found[chosen].message)

    async def attach(self, path: str) -> None:
        if not path:
            raise UsageError("which file? /attach PATH")
        await self._chat.attach(path)

    async def detach(self, _argument: str) -> None:
        self._chat.detach()

    async def help(self, _argument: str) -> None:
        here = [action for action in commands.ACTIONS if action.slash and hasattr(self, action.id)]
        await self._chat.show("Commands", commands.help_text({}, here))

    async def _choose(self, titles: list[str]) -> int | None:
        """Return the place of the one that the user chooses."""
        if not titles:
            self._chat.told("nothing found")
            return None
        await self._chat.show("Found", "\n".join(f"{number}: {title}" for number, title in enumerate(titles, 1)))
        answer = self._chat.answer("Number to open, or nothing: ")
        return int(answer) - 1 if answer.isdecimal() and 0 < int(answer) <= len(titles) else None


def _text(line: str) -> str:
    """Return a line. Raises UsageError where it was not UTF-8: Python stands half of a surrogate pair for each such byte."""
    if wrong := next((ord(char) - 0xDC00 for char in line if "\udc80" <= char <= "\udcff"), None):
        raise UsageError(f"the line is not UTF-8: byte 0x{wrong:02x}")
    return line


def _spoken(message: Message) -> str:
    """A message of the past, its speaker in front; what is attached by its name; how it ended where it is not whole."""
    attached = "".join(f"[{each.name}] " for each in message.attached)
    state = reports.cut_off(message, _GO_ON) if message.state is State.COMPLETE else message.error or message.state
    end = f" ({state})" if state else ""
    return for_stdout(f"{_SPEAKERS[message.role]}: {attached}{message.typed}{end}")
