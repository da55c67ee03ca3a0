"""The model that a command uses: in the running server of this user, or where there is none in this process."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pinyon.app.default_model import default_model
from pinyon.app.errors import BusyError, ServerError
from pinyon.app.running import read_server
from pinyon.app.settings import Folders, Settings
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.remote import RemoteService
    from pinyon.app.service import Model, Service
    from pinyon.app.wire import Room
    from pinyon.engine.events import Removed
    from pinyon.engine.meters import Meters
    from pinyon.models.memory.kv import KvType


class Backend:
    """Use as an async context manager: leaving it ends what this process runs. `model` is the loaded one; with `is_forced` it is loaded
    although it does not fit into memory.

    Once this process runs a model itself, it goes on doing so, also where a server is started later.
    """

    def __init__(self, folders: Folders, settings: Settings, *, is_forced: bool = False) -> None:
        self.model: Model | None = None
        self._folders = folders
        self._settings = settings
        self._is_forced = is_forced
        self._store = Store(folders.models)
        self._server: RemoteService | None = None
        self._service: Service | None = None
        self._hosted = contextlib.AsyncExitStack()
        self._loading = asyncio.Lock()

    @property
    def url(self) -> str | None:
        """Of the server; None where the model runs in this process."""
        return None if self._server is None else self._server.url

    async def load(
        self,
        model: str | None,
        context_tokens: int | None = None,
        on_progress: Callable[[float], None] = lambda _fraction: None,
        *,
        kv_type: "KvType | None" = None,
    ) -> "Model":
        """Load a model by name or path, None for the server's, the settings' or the latest; a model that is loaded is returned.

        `on_progress` is told the loaded fraction. In this process the model before goes first; a cancel ends the load.

        Raises:
            ModelError: no such model, or its file cannot be used.
            ModelLoadError: it cannot be loaded.
            ModelSlotError: the server answers with it, and with less context or another type of KV.
            DoesNotFitError, NoRoomError: it does not fit into memory.
            BusyError, ServerError: the server takes nothing new, or fails.
        """
        async with self._loading:
            self._server = None if self._service is not None else await self._found_server()
            if self._server is not None:
                name = model or self._settings.model
                path = None if name is None else self._store.resolve(name).path
                self.model = await self._server.load(
                    path, context_tokens, on_progress, is_forced=self._is_forced, kv_type=kv_type
                )
            else:
                name = model or default_model(self._store, self._settings)
                self.model = await self._hosted_model(name, context_tokens, on_progress, kv_type)
            return self.model

    async def meters(self) -> "Meters | None":
        """Return what the engine holds and does now; None while nothing is loaded, or the server does not answer."""
        try:
            return None if self.model is None else await self.model.meters()
        except (ServerError, BusyError):
            return None

    async def room(self) -> "Room | None":
        """Return what the next model may take of memory where models run; None where none does yet, or the server does not answer."""
        if self._service is not None:
            return await self._service.room()
        try:
            server = await self._found_server()
            return None if server is None else await server.room()
        except (ServerError, BusyError):
            return None

    async def forget(self, conversation: str) -> "Removed":
        """Forget what only this conversation left in the cache, of whatever model, in memory and on disk.

        Raises:
            EngineError, OSError, sqlite3.Error: not all of it could be deleted; it can be tried again.
            FolderInUseError: another process uses the folder of KV, and is no server.
            BusyError, ServerError: the server takes nothing new, or fails.
        """
        if self._service is not None:
            return await self._service.forget(conversation)
        if (server := await self._found_server()) is not None:
            return await server.forget(conversation)
        from pinyon.app.service import Service  # noqa: PLC0415  as below

        async with Service(self._folders, self._settings) as service:
            return await service.forget(conversation)

    async def _found_server(self) -> "RemoteService | None":
        if read_server(self._folders) is None:
            return None
        from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

        return await find_server(self._folders)

    async def _hosted_model(
        self, name: str, context_tokens: int | None, on_progress: Callable[[float], None], kv_type: "KvType | None"
    ) -> "Model":
        service = self._service or await self._open()
        try:
            return await service.load(name, context_tokens, on_progress, is_forced=self._is_forced, kv_type=kv_type)
        except asyncio.CancelledError:
            if service.loaded is None:  # the load would go on without us
                await self._close()
            raise
        finally:
            self.model = service.loaded

    async def _open(self) -> "Service":
        from pinyon.app.service import Service  # noqa: PLC0415  a command that attaches starts without it

        self._service = await self._hosted.enter_async_context(Service(self._folders, self._settings))
        return self._service

    async def _close(self) -> None:
        self._service = self.model = None
        await self._hosted.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()
