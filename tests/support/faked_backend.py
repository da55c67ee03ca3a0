"""A backend whose model is a fake one, for commands that are called in the test's own process."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Self

import click
from fake_service import FakeModel

from pinyon.app.ask import Ask, RawText
from pinyon.engine.estimate import Estimate


class AskedModel(FakeModel):
    """As service.Model. `estimates` is what it tells of every ask."""

    digest = "d1" * 32
    estimates = Estimate(100, resident=60, ram=10, disk=20, compute_s=0.25, restore_s=0.5, is_measured=True)

    async def estimate(self, _ask: Ask) -> Estimate:
        return self.estimates

    async def count(self, text: str) -> int:
        return len(await self.tokenize(RawText(text)))


class FakeBackend:
    """As Backend; `loads` are the models and contexts that were wanted. `loading` stands for the time that it takes."""

    def __init__(self, model: AskedModel) -> None:
        self.model = model
        self.loads: list[tuple[str | None, int | None]] = []

    async def loading(self) -> None:
        pass

    async def load(
        self, model: str | None, context_tokens: int | None = None, _on_progress: Callable[[float], None] | None = None
    ) -> AskedModel:
        self.loads.append((model, context_tokens))
        await self.loading()
        return self.model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.model.close()


def called(command: click.Command, *arguments: object) -> int:
    """Call a command as main does; return its exit code, or raise what it raises."""
    return command.main([str(argument) for argument in arguments], standalone_mode=False) or 0


def faked(monkeypatch, model: AskedModel) -> FakeBackend:
    """Let commands that are called from now on find this model."""
    backend = FakeBackend(model)
    monkeypatch.setitem(sys.modules, "pinyon.app.backend", SimpleNamespace(Backend=lambda *_: backend))
    return backend
