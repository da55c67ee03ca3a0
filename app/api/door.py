"""What every route goes through to reach a model: names, admission, counts, the end of the server."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol

from starlette.requests import Request

from pinyon.app.api.errors import unknown_model
from pinyon.app.ask import Ask
from pinyon.app.errors import QueueFullError, ShuttingDownError
from pinyon.app.limits import MAX_QUEUED
from pinyon.app.service import LoadedModel, Service
from pinyon.engine.client import EngineState
from pinyon.engine.config import MAX_SEQUENCES
from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.events import Event, Failed, Finished, Progress

ROOM: Final = MAX_SEQUENCES + MAX_QUEUED
"""How many answers may be computed or wait at once."""


class Meters(Protocol):
    """Is told about every ask that ends; metrics.Metrics is one."""

    def ended(self, last: Finished | Failed | None) -> None:
        """Count an ask; None for one whose client left."""


class Door:
    """One server's way to its service. `default_model` answers where a request names none."""

    def __init__(self, service: Service, default_model: Callable[[], str], meters: Meters) -> None:
        self.service = service
        self._default_model = default_model
        self._meters = meters
        self._open: dict[str, tuple[LoadedModel, Ask]] = {}
        self._computing: set[str] = set()
        self._emptied = asyncio.Event()
        self.is_draining = False

    @property
    def engine_state(self) -> EngineState:
        return self.service.engine_state

    @property
    def running(self) -> int:
        """Answers that are being computed."""
        return sum(ask.n for ask_id, (_, ask) in self._open.items() if ask_id in self._computing)

    @property
    def waiting(self) -> int:
        """Answers of which nothing is computed yet."""
        return sum(ask.n for ask_id, (_, ask) in self._open.items() if ask_id not in self._computing)

    async def model(self, name: str | None, on_progress: Callable[[float], None] | None = None) -> LoadedModel:
        """Return the model of that name, loaded; `on_progress` is told the loaded fraction. A path is no name here.

        Raises:
            ApiError: there is no model of that name.
            ModelError: its file cannot be used.
            ModelSlotError: another model is loaded.
            ModelLoadError: it cannot be loaded.
        """
        self._require_running()
        loaded = self.service.loaded
        if loaded is not None and name in {None, loaded.name}:
            return loaded
        if name is not None and not await asyncio.to_thread(self.service.store.knows, name):
            raise unknown_model(name)
        return await self.service.load(name or self._default_model(), on_progress=on_progress)

    async def events(self, model: LoadedModel, ask: Ask) -> AsyncGenerator[Event]:
        """Yield the events of an ask, as Model.generate does.

        Raises:
            BusyError: before the first event: there is no room, or the server is about to end.
            InvalidRequestError: a request of this id is open.
            TemplateError: as in Model.generate.
        """
        self._require_running()
        if ask.id in self._open:
            raise InvalidRequestError(f"a request with the id {ask.id!r} is still running")
        if self.running + self.waiting + ask.n > ROOM:
            raise QueueFullError(f"{MAX_SEQUENCES} answers are being computed and {MAX_QUEUED} wait: try again later")
        self._open[ask.id] = (model, ask)
        last: Finished | Failed | None = None
        try:
            async with contextlib.aclosing(model.generate(ask)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        if event.done:
                            self._computing.add(ask.id)
                    elif isinstance(event, Finished | Failed):
                        last = event
                    yield event
        finally:
            del self._open[ask.id]
            self._computing.discard(ask.id)
            self._meters.ended(last)
            if not self._open:
                self._emptied.set()

    async def cancel(self, ask_id: str) -> None:
        """End an ask early; one that has ended is left alone."""
        if (found := self._open.get(ask_id)) is not None:
            await found[0].cancel(ask_id)

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; return when everything has ended, which is made so after `grace_s`."""
        self.is_draining = True
        self._emptied.clear()
        if not self._open:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_s)
        for ask_id in list(self._open):
            await self.cancel(ask_id)

    def _require_running(self) -> None:
        if self.is_draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")


def door_of(request: Request) -> Door:
    """Return the door of the server that a request came to."""
    door = request.app.state.door
    assert isinstance(door, Door), "make_app puts it there"
    return door
