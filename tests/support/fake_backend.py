"""A backend whose model runs a real engine on the fakes, for the chat and for commands; loading and dying are the test's."""

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Self

import click
from fake_service import FakeModel

from pinyon.app.ask import Ask
from pinyon.app.wire import Room
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Removed
from pinyon.engine.meters import Meters
from pinyon.models.memory.kv import KvType


class ChatModel(FakeModel):
    """Counts a token a character; `cached` tokens of every prompt count as kept."""

    digest = "ab" * 32
    cached = 0

    async def count(self, text: str) -> int:
        return len(text)

    async def estimate(self, ask: Ask) -> Estimate:
        tokens = sum(len(message.content) for message in ask.prompt.messages) + len(ask.prompt.begun)
        resident = min(self.cached, tokens)
        return Estimate(tokens, resident=resident, compute_s=(tokens - resident) / 100)


class FakeBackend:
    """As Backend. `load_errors` are raised by the next loads; `ready` not set holds them."""

    def __init__(self, model: ChatModel, *load_errors: Exception) -> None:
        self.url: str | None = None
        self.model: ChatModel | None = None
        self.loads: list[str | None] = []
        self.contexts: list[int | None] = []
        self.kv_types: list[KvType | None] = []
        self.forgotten: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self._model = model
        self._load_errors = list(load_errors)

    async def load(
        self,
        model: str | None,
        context_tokens: int | None = None,
        on_progress: Callable[[float], None] = lambda _: None,
        *,
        kv_type: KvType | None = None,
    ) -> ChatModel:
        self.loads.append(model)
        self.contexts.append(context_tokens)
        self.kv_types.append(kv_type)
        on_progress(0.5)
        await self.ready.wait()
        if self._load_errors:
            raise self._load_errors.pop(0)
        self.model = self._model
        return self._model

    async def meters(self) -> Meters | None:
        return None if self.model is None else Meters(cells=4096)

    async def room(self) -> Room | None:
        return None

    async def forget(self, conversation: str) -> Removed:
        self.forgotten.append(conversation)
        return Removed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._model.close()


def called(command: click.Command, *arguments: object) -> int:
    """Call a command as main does; return its exit code, or raise what it raises."""
    return command.main([str(argument) for argument in arguments], standalone_mode=False) or 0


def faked(monkeypatch, model: ChatModel) -> FakeBackend:
    """Let commands that are called from now on in the test's own process find this model."""
    backend = FakeBackend(model)
    monkeypatch.setitem(sys.modules, "pinyon.app.backend", SimpleNamespace(Backend=lambda *_, **_named: backend))
    return backend
