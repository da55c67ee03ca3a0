"""The application over a real service, whose default is the model at a path."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fake_service import NONCE
from fastapi import FastAPI

from pinyon.app.api.app import make_app
from pinyon.app.api.door import Door
from pinyon.app.api.metrics import Metrics
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings


@dataclass
class RealServer:
    app: FastAPI
    door: Door
    service: Service

    async def pid(self) -> int:
        """The worker's process id."""
        return await self.service.loaded._engine.pid()


@contextlib.asynccontextmanager
async def real_server(
    model: Path, home: Path, context: int | None = None, threads: int = 2
) -> AsyncIterator[RealServer]:
    folders = Folders.of_user({"PINYON_HOME": str(home)})
    async with Service(folders, Settings(threads=threads, context=context)) as service:
        metrics = Metrics()
        door = Door(service, str(model), Settings(), metrics)
        await service.load(str(model))
        yield RealServer(make_app(door, metrics.registry, NONCE, with_docs=True), door, service)
