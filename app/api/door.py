"""What every route goes through to reach a model: names, admission, counts, the end of the server."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Protocol

from starlette.requests import Request

from pinyon.app.api.errors import unknown_model
from pinyon.app.ask import Ask
from pinyon.app.default_model import default_model
from pinyon.app.errors import ShuttingDownError
from pinyon.app.service import LoadedModel, Service, slot_taken
from pinyon.app.settings import Settings
from pinyon.engine.client import EngineState
from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.events import Event, Failed, Finished, Progress


class Meters(Protocol):
    """Is told about every ask that ends; metrics.Metrics is one."""

    def ended(self, outcome: str, finished: Finished | None) -> None:
        """Count an ask; `finished` is its last event, if it came to one."""


class Door:
    """One server's way to its service. `served` is the model that the server was started for, None where any may be first."""

    def __init__(self, service: Service, served: str | None, settings: Settings, meters: Meters) -> None:
        self.service = service
        self._served = served
        self._settings = settings
        self._meters = meters
        self._open: dict[str, tuple[LoadedModel, Ask]] = {}
        self._computing: set[str] = set()
        self._arriving: set[asyncio.Task[object]] = set()
        self._changed = asyncio.Event()
        self._is_cut = False
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
            ModelSlotError: another model has the only place.
            ModelLoadError: it cannot be loaded.
            ShuttingDownError: the server is about to end.
        """
        loaded = self.service.loaded
        is_answering = loaded is not None and name == loaded.name
        if name is not None and not is_answering and not await asyncio.to_thread(self.service.store.knows, name):
            raise unknown_model(name)
        return await self.load(name, on_progress)

    async def load(self, name: str | None, on_progress: Callable[[float], None] | None = None) -> LoadedModel:
        """As `model`, for this user's own commands, which may name a file by its path."""
        self._require_running()
        loaded = self.service.loaded
        if loaded is not None and (name is None or loaded.is_called(name)):
            return loaded
        with self._arrival():
            wanted = await asyncio.to_thread(self._default_name) if name is None else name
            await asyncio.to_thread(self._require_served, wanted)
            return await self.service.load(wanted, on_progress=on_progress)

    def _default_name(self) -> str:
        return self._served or default_model(self.service.store, self._settings)

    def _require_served(self, name: str) -> None:
        if self._served is None:
            return
        served, wanted = self.service.store.resolve(self._served), self.service.store.resolve(name)
        if wanted.path != served.path:
            raise slot_taken(served.name, wanted)

    async def events(self, model: LoadedModel, ask: Ask) -> AsyncGenerator[Event]:
        """Yield the events of an ask, as Model.generate does.

        Raises:
            ShuttingDownError: the server is about to end.
            InvalidRequestError: a request of this id is open.
            TemplateError: as in Model.generate.
        """
        outcome, finished = "left", None
        try:
            with self._admitted(model, ask):
                async with contextlib.aclosing(model.generate(ask)) as events:
                    with self._arrival():
                        event = await anext(events)
                    while not isinstance(event, Finished | Failed):
                        if isinstance(event, Progress) and event.done:
                            self._computing.add(ask.id)
                        yield event
                        event = await anext(events)
                    finished = event if isinstance(event, Finished) else None
                    outcome = str(event.reasons[0] if isinstance(event, Finished) else event.kind)
                    yield event
        except Exception:
            outcome = "refused"
            raise
        finally:
            self._meters.ended(outcome, finished)

    @contextlib.contextmanager
    def _admitted(self, model: LoadedModel, ask: Ask) -> Iterator[None]:
        """Count an ask as long as it is here."""
        self._require_running()
        if ask.id in self._open:
            raise InvalidRequestError(f"a request with the id {ask.id!r} is still running")
        self._open[ask.id] = (model, ask)
        try:
            yield
        finally:
            del self._open[ask.id]
            self._computing.discard(ask.id)
            self._changed.set()

    @contextlib.contextmanager
    def _arrival(self) -> Iterator[None]:
        """What the engine does not know yet: when the server must end, it is ended here, and told so."""
        task = asyncio.current_task()
        assert task is not None, "routes run in tasks"
        self._arriving.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_cut:
                raise
            task.uncancel()
            raise shutting_down() from None
        finally:
            self._arriving.discard(task)
            self._changed.set()

    async def cancel(self, ask_id: str) -> None:
        """End an ask early; one that has ended is left alone."""
        if (found := self._open.get(ask_id)) is not None:
            await found[0].cancel(ask_id)

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; return when everything has ended, or has been told to, which happens after `grace_s`."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._open or self._arriving:
                    self._changed.clear()
                    await self._changed.wait()
        self._is_cut = True
        for task in self._arriving:
            task.cancel()
        for ask_id in list(self._open):
            await self.cancel(ask_id)

    def _require_running(self) -> None:
        if self.is_draining:
            raise shutting_down()


def shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down and takes no new requests")


def ended_early() -> ShuttingDownError:
    return ShuttingDownError("the server ended this answer: it is shutting down")


def door_of(request: Request) -> Door:
    """Return the door of the server that a request came to."""
    door = request.app.state.door
    assert isinstance(door, Door), "make_app puts it there"
    return door
