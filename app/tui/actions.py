"""What the actions do that need no screen: on the screen and in plain lines alike. Each may take its time, and ask."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from pinyon.app.backend import Backend
from pinyon.app.conversing import Choices, context_taken
from pinyon.app.errors import UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Message, Role, State
from pinyon.app.named_options import named_options, named_values
from pinyon.app.settings import Folders, Settings
from pinyon.app.templates import read_template, template_names
from pinyon.app.tui import commands, reports
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.exporting import export_to, suggested_name
from pinyon.models.disk import printable
from pinyon.models.store import Store

WITH_REASONING: Final = "--reasoning"
USUAL_URL: Final = "http://127.0.0.1:8642"
"""Where `pinyon serve` listens unless it is told otherwise."""
_CUT: Final = {State.CANCELLED, State.FAILED, State.INTERRUPTED}


class Desk(Protocol):
    """Where the user sits: what the actions look at, and how they talk to him."""

    dialogue: Dialogue
    history: History
    backend: Backend
    folders: Folders
    settings: Settings

    @property
    def selected(self) -> int | None:
        """The message that is meant where none is named."""

    def told(self, text: str) -> None: ...
    async def show(self, title: str, text: str) -> None: ...
    async def ask(self, question: str, value: str) -> str:
        """Return the line that the user gives; empty where there is none."""

    def put(self, text: str) -> None:
        """Give the user a text to say, or to change before."""

    def leave(self) -> None: ...


class Actions:
    """A method for each id of the table; it takes what follows the slash command. Raises AppError for what cannot be done."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def _dialogue(self) -> Dialogue:
        return self._desk.dialogue

    async def do(self, action: str, argument: str) -> None:
        """Do the action with this id. Raises UsageError where there is no such action here."""
        method = getattr(self, action, None)
        if method is None:
            raise UsageError("this needs the whole screen: leave out --plain")
        await method(argument)

    # Conversations

    async def new(self, _argument: str) -> None:
        await self._dialogue.open(None)

    async def rename(self, title: str) -> None:
        conversation = self._dialogue.conversation
        if conversation is None:
            raise UsageError("there is no conversation yet that could have a title")
        if not title:
            title = await self._desk.ask("Title", conversation.title)
        if title:
            self._desk.history.rename(conversation.id, title)
            await self._dialogue.open(conversation.id)

    async def delete_conversation(self, conversation: str) -> None:
        current = self._dialogue.conversation
        if not conversation and current is None:
            raise UsageError("there is no conversation yet that could be deleted")
        await self._dialogue.delete_conversation(conversation or (current.id if current else ""))
        self._desk.told("the conversation is deleted; /undo takes that back")

    async def undo(self, _argument: str) -> None:
        if not (back := await self._dialogue.undo()):
            raise UsageError("nothing was deleted that could come back")
        self._desk.told(f"{back} is back")

    async def export(self, argument: str) -> None:
        conversation, path = self._dialogue.conversation, self._dialogue.path
        if conversation is None or not path:
            raise UsageError("there is nothing to export yet")
        words = argument.split()
        reasoning = WITH_REASONING in words
        name = " ".join(word for word in words if word != WITH_REASONING)
        if not name:
            name = await self._desk.ask("Write to a file (.md, .jsonl or .html)", suggested_name(conversation.title))
        if name:
            export_to(Path(name), conversation, path, reasoning=reasoning)
            self._desk.told(f"written to {printable(name)}")

    # Messages

    async def regenerate(self, id: str) -> None:  # noqa: A002
        chosen = self._message(id, "an answer or a question", lambda message: message.role is not Role.SYSTEM)
        self._dialogue.answer_again(chosen)

    async def go_on(self, id: str) -> None:  # noqa: A002
        self._dialogue.go_on(self._message(id, "an answer that was cut off", is_cut))

    async def previous(self, id: str) -> None:  # noqa: A002
        await self._dialogue.turn(self._message(id, "a message with branches", self._has_siblings), -1)

    async def next(self, id: str) -> None:  # noqa: A002
        await self._dialogue.turn(self._message(id, "a message with branches", self._has_siblings), 1)

    async def delete(self, id: str) -> None:  # noqa: A002
        await self._dialogue.delete(self._message(id, "a message", lambda _message: True))
        self._desk.told("left out, with what follows; /undo takes that back")

    async def copy_curl(self, _argument: str) -> None:
        await self._desk.show("As a curl command", reports.as_curl(*self._asked(), self._desk.backend.url or USUAL_URL))

    async def copy_command(self, _argument: str) -> None:
        await self._desk.show("As a pinyon command", reports.as_command(*self._asked()))

    # How answers are made

    async def model(self, name: str) -> None:
        if not name:
            raise UsageError("which one? `pinyon list` shows what is here")
        # A name that is none must not cost the model that is there.
        await asyncio.to_thread(Store(self._desk.folders.models).resolve, name)
        self._dialogue.use(name)

    async def preset(self, argument: str) -> None:
        folder = self._desk.folders.templates
        name, *given = argument.split() or [""]
        if not name:
            names = "\n".join(template_names(folder))
            await self._desk.show(
                "Templates", names or f"There is none yet. They are TOML files in {printable(folder)}."
            )
            return
        template = read_template(name, folder)
        prompt, system = template.drafted(named_values(given, f"/preset {name}"))
        if template.options:
            self._dialogue.choose(named_options(template.options).checked())
        if system is not None:
            await self._dialogue.instruct(system)
        self._desk.put(prompt)

    async def system(self, text: str) -> None:
        if not text:
            text = await self._desk.ask("What the model is told before everything else", self._dialogue.instructions)
        if text:
            await self._dialogue.instruct(text)

    async def params(self, argument: str) -> None:
        if argument == "clear":
            self._dialogue.choose(None)
        elif argument:
            self._dialogue.choose(named_options(named_values(argument.split(), "/params")).checked())
        await self._desk.show("How tokens are drawn", reports.params_report(self._dialogue.choices))

    # To look at

    async def cache(self, _argument: str) -> None:
        await self._desk.show("The cache", reports.cache_report(self._dialogue.path))

    async def context(self, _argument: str) -> None:
        model = self._dialogue.model
        if model is None:
            raise UsageError("no model is loaded that could count the tokens")
        taken = await context_taken(model, self._dialogue.path, self._dialogue.choices)
        await self._desk.show("The context", reports.context_report(taken, model))

    async def help(self, _argument: str) -> None:
        await self._desk.show("Keys and commands", commands.help_text(commands.keymap(self._desk.settings.keys)))

    async def quit(self, _argument: str) -> None:
        self._desk.leave()

    def _message(self, id: str, kind: str, suits: Callable[[Message], bool]) -> Message:  # noqa: A002
        """Return the message with this id, else the one that is selected, else the last one, as far as it suits."""
        chosen = int(id) if id.isdecimal() else self._desk.selected
        path = self._dialogue.path
        message = next((message for message in path if message.id == chosen and suits(message)), None)
        if message is None and not id:
            message = next((message for message in reversed(path) if suits(message)), None)
        if message is None:
            raise UsageError(f"there is no such message here: this takes {kind}")
        return message

    def _has_siblings(self, message: Message) -> bool:
        return len(self._desk.history.tree(message.conversation).siblings(message.id)) > 1

    def _asked(self) -> tuple[Sequence[Message], Choices, str]:
        path = self._dialogue.path
        answer = reports.last_answered(path)
        if answer is None or answer.answered is None:
            raise UsageError("nothing was answered here yet")
        choices = self._dialogue.choices
        sampling = msgspec.structs.replace(answer.answered.settings, seed=answer.answered.seed)
        return path, msgspec.structs.replace(choices, sampling=sampling), answer.answered.model


def is_cut(message: Message) -> bool:
    """Whether an answer has more to say: it was stopped, its process died, or it reached its limit."""
    at_limit = reports.is_at_limit(message)
    return message.role is Role.ASSISTANT and bool(message.text) and (at_limit or message.state in _CUT)
