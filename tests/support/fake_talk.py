"""A dialogue with its surroundings: a history in memory, a model on the fakes, and a listener."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fake_backend import ChatModel, FakeBackend
from fake_service import says

from pinyon.app.conversing import Choices
from pinyon.app.history.history import History
from pinyon.app.history.records import State
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.draft import Draft
from pinyon.engine.events import Chunk


class Listener:
    """Keeps what it is told, as words."""

    def __init__(self):
        self.told_words = []
        self.text = ""
        self.on_text = asyncio.Event()

    async def opened(self, at):
        self.told_words.append("opened")

    async def said(self, message):
        self.told_words.append(f"said {message.text}")

    def began(self, message):
        assert message.state in {State.STREAMING, State.FAILED}  # an answer may fail with its first event
        self.told_words.append("began")

    def heard(self, event):
        if isinstance(event, Chunk):
            self.text += event.text
            self.on_text.set()

    def ended(self, message):
        self.told_words.append(f"ended {message.state.value}")

    def changed(self):
        pass

    def told(self, text):
        self.told_words.append(f"told {text}")

    def failed(self, error, text=""):
        self.told(text or str(error))

    def broke(self, error):
        raise error

    def needs_model(self, reason):
        self.told_words.append("needs a model")


class Talk:
    """A dialogue with its surroundings."""

    def __init__(self, answer="Aye.", *load_errors):
        self.history = History.in_memory()
        self.model = ChatModel(says(answer))
        self.backend = FakeBackend(self.model, *load_errors)
        self.listener = Listener()
        self.dialogue = Dialogue(self.history, self.backend, self.listener, Choices(), None, None)

    async def says(self, text):
        self.dialogue.say(Draft(text))
        await self.dialogue.finished()

    @property
    def texts(self):
        return [message.text for message in self.dialogue.path]


@contextlib.asynccontextmanager
async def talks() -> AsyncIterator[Callable[..., Talk]]:
    """Yield what makes dialogues; they are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        def make(*arguments):
            talk = Talk(*arguments)
            stack.callback(talk.history.close)
            stack.push_async_callback(talk.model.close)
            stack.push_async_callback(talk.dialogue.close)
            return talk

        yield make
