"""The client side of a running server: finds it, has it prove itself, and uses its model as if it were loaded here."""

import asyncio
import contextlib
import hmac
import os
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from pinyon.app import wire
from pinyon.app.ask import Ask
from pinyon.app.errors import BusyError, ServerError
from pinyon.app.running import KEY_HEADER, ServerFile, key, proof, read_server
from pinyon.app.settings import Folders
from pinyon.engine.errors import DoesNotFitError, EngineError, ProtocolError, error_of
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Failed, FailureKind, Finished, Removed
from pinyon.engine.meters import Meters
from pinyon.engine.protocol import FrameBuffer, Loading
from pinyon.engine.weights_digest import MEMORY_NAME, known_digest
from pinyon.models.memory.kv import KvType

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # its own command line costs 0.05 s of each start
import httpx  # noqa: E402

PROOF_S: Final = 1.0
"""How long a server may take to prove itself; past that a command does without it."""
SHORT_S: Final = 5.0
"""How long it may take over what needs no model."""
LONG_S: Final = 60.0
"""How long it may take to delete what is cached, on a disk that may be slow, and to read a long text."""
MAX_ANSWER_BYTES: Final = 1 << 20

_Reply = TypeVar("_Reply", Estimate, wire.Counted)


async def find_server(folders: Folders) -> "RemoteService | None":
    """Return the running server of this user; None where there is none, or something else answers at its address.

    Until the proof nothing is sent but a random challenge.
    """
    server = read_server(folders)
    if server is None or not await _proves_itself(server):
        return None
    return RemoteService(server, folders.kv / MEMORY_NAME)


async def _proves_itself(server: ServerFile) -> bool:
    challenge = secrets.token_hex(16)
    try:
        async with (
            asyncio.timeout(PROOF_S),
            _exchange("GET", f"{server.url}/pinyon/identity?challenge={challenge}") as reply,
        ):
            identity = msgspec.json.decode(await _read(reply), type=wire.Identity)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError):
        return False
    return hmac.compare_digest(identity.proof.encode(), proof(server.nonce, challenge).encode())


@contextlib.asynccontextmanager
async def _exchange(
    method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> AsyncIterator[httpx.Response]:
    """Send a request on a connection of its own, which is closed on leaving: a server takes that for a cancel.

    Never through a proxy; and how long an answer may take is for the caller to say.
    """
    transport = httpx.AsyncHTTPTransport(verify=False)  # plain HTTP: certificates would be loaded for nothing
    async with (
        httpx.AsyncClient(transport=transport, timeout=None, trust_env=False) as client,  # noqa: S113
        client.stream(method, url, content=body, headers=headers) as reply,
    ):
        yield reply


async def _read(reply: httpx.Response) -> bytes:
    """Return an answer's body, or the first part of one that is longer than any of ours."""
    body = bytearray()
    async for part in reply.aiter_raw():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            break
    return bytes(body)


class RemoteService:
    """A running server that has proved itself. `known_digests` is where it remembers those of models' files."""

    def __init__(self, server: ServerFile, known_digests: Path) -> None:
        self.known_digests = known_digests
        self.url = server.url
        self.pid = server.pid
        self._headers = {KEY_HEADER: key(server.nonce)}

    async def status(self) -> wire.Status:
        """Return what the server is doing. Raises ServerError."""
        async with self._answer("GET", "/pinyon/status", limit_s=SHORT_S) as body:
            return msgspec.json.decode(body, type=wire.Status)

    async def room(self) -> wire.Room:
        """Return what the next model may take of memory. Raises ServerError."""
        async with self._answer("GET", "/pinyon/room", limit_s=SHORT_S) as body:
            return msgspec.json.decode(body, type=wire.Room)

    async def clear(self, path: Path | None, older_than_s: float) -> Removed:
        """Have forgotten what is cached of the model at a path, None for all, and is older. Raises ServerError."""
        wanted = wire.Clear(None if path is None else os.fsencode(path), older_than_s)
        async with self._answer("POST", "/pinyon/clear", wire.encode(wanted), limit_s=LONG_S) as body:
            return msgspec.json.decode(body, type=Removed)

    async def forget(self, conversation: str) -> Removed:
        """Have forgotten what only this conversation left in the cache. Raises ServerError."""
        wanted = wire.encode(wire.Forget(conversation))
        async with self._answer("POST", "/pinyon/forget", wanted, limit_s=LONG_S) as body:
            return msgspec.json.decode(body, type=Removed)

    async def meters(self, path: bytes) -> Meters | None:
        """Return what the engine of the model at a path holds and does; None while it is not loaded. Raises ServerError."""
        wanted = wire.encode(wire.ReadMeters(path))
        async with self._answer("POST", "/pinyon/meters", wanted, limit_s=SHORT_S) as body:
            return msgspec.json.decode(body, type=Meters | None)

    @contextlib.asynccontextmanager
    async def _answer(self, method: str, route: str, body: bytes = b"", *, limit_s: float) -> AsyncIterator[bytes]:
        """Yield a whole answer; its bytes may turn out to be none of ours. Raises ServerError."""
        try:
            async with (
                asyncio.timeout(limit_s),
                _exchange(method, f"{self.url}{route}", body, self._headers) as reply,
            ):
                await _require_ok(reply)
                yield await _read(reply)
        except (TimeoutError, httpx.HTTPError, msgspec.DecodeError) as error:
            raise self._gone(error) from error

    async def load(
        self,
        path: Path | None,
        context_tokens: int | None,
        on_progress: Callable[[float], None],
        *,
        is_forced: bool = False,
        kv_type: KvType | None = None,
    ) -> "RemoteModel":
        """Have a model file loaded, or the server's own choice; a model that is loaded already is only looked at.

        Raises:
            ModelError, ModelLoadError: as Service.load.
            ModelSlotError: the model is answering, and with less context or another type of KV.
            DoesNotFitError, NoRoomError: as Service.using.
            BusyError, ServerError: the server takes nothing new, or fails.
        """
        wanted = wire.Load(None if path is None else os.fsencode(path), context_tokens, is_forced, kv_type)
        try:
            async with contextlib.aclosing(self.ask("/pinyon/load", wanted)) as messages:
                async for message in messages:
                    match message:
                        case Loading(fraction):
                            on_progress(fraction)
                        case wire.Loaded():
                            return RemoteModel(self, message)
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        raise ServerError(f"the server at {self.url} broke off while it loaded the model")

    async def call(self, route: str, body: wire.Generate | wire.Count, kind: type[_Reply]) -> _Reply:
        """Return the one message that answers a body. Raises ServerError, and what the server refused with."""
        try:
            async with asyncio.timeout(LONG_S), contextlib.aclosing(self.ask(route, body)) as messages:
                async for message in messages:
                    if isinstance(message, kind):
                        return message
                    if isinstance(message, Failed):
                        raise error_of(message)
        except (TimeoutError, httpx.HTTPError) as error:
            raise self._gone(error) from error
        raise ServerError(f"the server at {self.url} broke off its answer")

    async def ask(self, route: str, body: wire.ToServer) -> AsyncGenerator[wire.FromServer]:
        """Yield the messages that answer a body.

        Raises:
            httpx.HTTPError: the server went away.
            Exception: what the server refused with; ProtocolError for bytes that are no messages.
        """
        frames = FrameBuffer()
        async with _exchange("POST", f"{self.url}{route}", wire.encode(body), self._headers) as reply:
            await _require_ok(reply)
            async for part in reply.aiter_raw():
                for payload in frames.feed(part):
                    yield _unless_refused(payload)

    def _gone(self, error: Exception) -> ServerError:
        return ServerError(f"the server at {self.url} does not answer any more: {error}")


def _unless_refused(payload: bytes) -> wire.FromServer:
    try:
        message = wire.decode_answer(payload)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the server sent what is no message: {error}; is it another version of Pinyon?") from error
    if isinstance(message, wire.Refused):
        raise message.error()
    return message


class _ErrorText(msgspec.Struct, frozen=True):
    message: str


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _ErrorText


async def _require_ok(reply: httpx.Response) -> None:
    """Raise what an HTTP status other than 200 stands for."""
    if reply.status_code == 200:
        return
    text = _error_text(await _read(reply))
    match reply.status_code:
        case 503:
            raise BusyError(text)
        case 413:
            raise DoesNotFitError(f"the prompt is too long for the server: {text}")
        case status:
            raise ServerError(f"the server answered {status}: {text}")


def _error_text(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer).error.message
    except msgspec.DecodeError:
        return body[:80].decode("utf-8", "replace")


class RemoteModel:
    """A model that is ready in a server; as service.Model."""

    def __init__(self, service: RemoteService, loaded: wire.Loaded) -> None:
        self._service = service
        self._path = loaded.path
        self.name = loaded.name
        self.context_tokens = loaded.context_tokens
        self.kv_type = loaded.kv_type
        self.threads = loaded.threads
        self.why_no_disk = loaded.why_no_disk
        self.compromises = loaded.compromises
        self._digest = loaded.digest

    async def meters(self) -> Meters | None:
        """Return what its engine holds and does; None where it is not loaded any more. Raises ServerError."""
        return await self._service.meters(self._path)

    @property
    def digest(self) -> str:
        """As Model.digest."""
        self._digest = self._digest or known_digest(Path(os.fsdecode(self._path)), self._service.known_digests)
        return self._digest

    async def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        """As Model.generate. Raises BusyError too, and ServerError."""
        try:
            async with contextlib.aclosing(
                self._service.ask("/pinyon/generate", wire.Generate(self._path, ask))
            ) as messages:
                async for message in messages:
                    if not isinstance(message, Event):
                        raise ProtocolError(f"the server sent a {type(message).__name__} instead of an event")
                    yield message
                    if isinstance(message, Finished | Failed):
                        return
        except EngineError as error:
            yield error.as_event()
        except httpx.HTTPError as error:
            yield Failed(FailureKind.ENGINE_CRASH, f"the server at {self._service.url} died while it answered: {error}")
        else:
            yield Failed(FailureKind.ENGINE_CRASH, f"the server at {self._service.url} broke off its answer")

    async def cancel(self, ask_id: str) -> None:
        """As Model.cancel. Where the server cannot be told any more, the answer has had its end."""
        with contextlib.suppress(TimeoutError, httpx.HTTPError, ServerError, BusyError):
            async with (
                asyncio.timeout(SHORT_S),
                contextlib.aclosing(self._service.ask("/pinyon/cancel", wire.Cancel(ask_id))) as messages,
            ):
                async for _ in messages:
                    pass

    async def estimate(self, ask: Ask) -> Estimate:
        """As Model.estimate. Raises BusyError too, and ServerError."""
        return await self._service.call("/pinyon/estimate", wire.Generate(self._path, ask), Estimate)

    async def count(self, text: str) -> int:
        """As Model.count. Raises BusyError too, and ServerError."""
        return (await self._service.call("/pinyon/count", wire.Count(self._path, text), wire.Counted)).tokens
