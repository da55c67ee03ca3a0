"""The chat on fakes: the real application, screen and history, and a model that says what it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fake_backend import ChatModel, FakeBackend
from fakes import Next
from textual.pilot import Pilot

from pinyon.app.conversing import Choices
from pinyon.app.history.history import History
from pinyon.app.settings import Folders, Settings
from pinyon.app.tui.app import ChatApp
from pinyon.app.tui.chat_screen import ChatScreen

SETTINGS = Settings()


class FakeChat:
    """`pilot` drives it while it runs."""

    pilot: Pilot[None]

    def __init__(self, folder: Path, next_token: Next, *, settings: Settings = SETTINGS, **wishes: object) -> None:
        self.history = History.in_memory()
        self.model = ChatModel(next_token)
        self.backend = FakeBackend(self.model)
        self.screen = ChatScreen(
            self.history,
            self.backend,
            Folders.of_user({"PINYON_HOME": str(folder)}),
            settings,
            **{"model": None, "context": None, "choices": Choices(), "conversation": None, **wishes},
        )
        self.app = ChatApp(self.screen, settings)

    @property
    def dialogue(self):
        return self.screen.dialogue

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.dialogue.path]

    @property
    def status(self) -> str:
        return str(self.screen.query_one("#status").content)

    @property
    def title(self) -> str:
        return str(self.screen.query_one("#title").content)

    @property
    def told(self) -> list[str]:
        return [notification.message for notification in self.app._notifications]

    async def types(self, text: str) -> None:
        """Put a text into the prompt and press enter."""
        self.screen.prompt.put(text)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def says(self, text: str) -> None:
        """Say something and wait for the answer."""
        await self.types(text)
        await self.settled()

    async def settled(self) -> None:
        """Wait until everything is done and shown."""
        if doing := [worker for worker in self.app.workers if worker.group == "doing"]:
            await self.app.workers.wait_for_complete(doing)
        await self.dialogue.finished()
        await self.screen.transcript.settled()
        await self.pilot.pause()

    async def until(self, condition) -> None:
        """Let it run until something is so."""
        async with asyncio.timeout(5):
            while not condition():
                await self.pilot.pause(0.01)


@contextlib.asynccontextmanager
async def running(
    chat: FakeChat, size: tuple[int, int] = (120, 40), *, notifications: bool = False
) -> AsyncIterator[FakeChat]:
    try:
        async with chat.app.run_test(size=size, notifications=notifications) as pilot:
            chat.pilot = pilot
            await pilot.pause()
            yield chat
    finally:
        await chat.dialogue.close()
        await chat.model.close()
        chat.history.close()
