"""What every route goes through to reach a model: names, admission, counts, the end of the server."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Protocol

from starlette.requests import Request

from pinyon.app.api.errors import unknown_model
from pinyon.app.ask import Ask
from pinyon.app.default_model import default_model
from pinyon.app.errors import ShuttingDownError
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.loaded_model import LoadedModel
from pinyon.app.service import Service
from pinyon.app.settings import Settings
from pinyon.engine.client import EngineState
from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.events import Event, Failed, Finished, Progress
from pinyon.models.memory.kv import KvType


class Meters(Protocol):
    """Is told about every ask that ends; metrics.Metrics is one."""

    def ended(self, outcome: str, finished: Finished | None) -> None:
        """Count an ask; `finished` is its last event, if it came to one."""


class Door:
    """One server's way to its service. `served` is the model that answers where none is named, None for the last used one."""

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
    def keep_alive_s(self) -> int:
        """How long a model stays after its last request, where that does not say."""
        return self._settings.keep_alive_s

    @property
    def engine_state(self) -> EngineState:
        return self.service.engine_state

    @property
    def running(self) -> int:
        """Answers that are being computed."""
        return self.answers_of(None)[0]

    @property
    def waiting(self) -> int:
        """Answers of which nothing is computed yet."""
        return self.answers_of(None)[1]

    def answers_of(self, model: LoadedModel | None) -> tuple[int, int]:
        """Return how many answers of a model, None for all, are being computed, and how many wait."""
        found = {ask_id: ask.n for ask_id, (by, ask) in self._open.items() if model in {None, by}}
        running = sum(n for ask_id, n in found.items() if ask_id in self._computing)
        return running, sum(found.values()) - running

    @contextlib.asynccontextmanager
    async def using(self, name: str | None, keep_alive: KeepAlive | None = None) -> AsyncIterator[LoadedModel]:
        """Have the model of that name loaded, and keep it as long as the context lasts. A path is no name here.

        Raises:
            ApiError: there is no model of that name.
            ModelError: its file cannot be used.
            NoRoomError, DoesNotFitError: it does not fit into memory.
            ModelLoadError: it cannot be loaded.
            ShuttingDownError: the server is about to end.
        """
        is_known = name is None or any(name == model.name for model in self.service.models)
        if name is not None and not is_known and not await asyncio.to_thread(self.service.store.knows, name):
            raise unknown_model(name)
        async with self.loaded(name, keep_alive=keep_alive) as model:
            yield model

    @contextlib.asynccontextmanager
    async def loaded(
        self,
        name: str | None,
        context_tokens: int | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        keep_alive: KeepAlive | None = None,
        is_forced: bool = False,
        kv_type: KvType | None = None,
    ) -> AsyncIterator[LoadedModel]:
        """As `using`, with a name or a file's path, and loaded as Service.using says. Raises ModelSlotError, too."""
        self._require_running()
        async with contextlib.AsyncExitStack() as held:
            with self._arrival():
                wanted = await self._default_name() if name is None else name
                using = self.service.using(
                    wanted, context_tokens, on_progress, keep_alive=keep_alive, is_forced=is_forced, kv_type=kv_type
                )
                model = await held.enter_async_context(using)
            yield model

    async def _default_name(self) -> str:
        """Return the model that the server was started for, else the one that was used last, else what commands would take."""
        if self._served is not None:
            return self._served
        if (loaded := self.service.loaded) is not None:
            return str(loaded.record.path)
        return await asyncio.to_thread(default_model, self.service.store, self._settings)

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
