"""The server process: its socket, its signals, its end. One event loop serves HTTP and holds the engines.

The first SIGTERM, SIGHUP or Ctrl+C lets open answers finish while new requests are told to come back later; a second Ctrl+C
ends them now.
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import uvicorn

from pinyon.app.api.app import make_app
from pinyon.app.api.connection import GuardedConnection
from pinyon.app.api.door import Door
from pinyon.app.api.guard import Guard, GuardRules
from pinyon.app.api.metrics import Metrics
from pinyon.app.api.reach import bracketed, is_loopback, is_wildcard, read_or_create_tokens, require_token
from pinyon.app.errors import ServerError
from pinyon.app.limits import SHUTDOWN_GRACE_S
from pinyon.app.running import ServerFile, data_folder_held, published
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings
from pinyon.models.store import Store

_log = logging.getLogger(__name__)

LAST_WORDS_S: Final = 2
"""The part of the shutdown's time that is kept for writing the ends of answers."""
BACKLOG: Final = 512


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where to listen, which model stays in memory and answers where none is named, and whom to let in."""

    host: str
    port: int
    model: str | None = None
    token_file: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()


Prepare = Callable[[Service, int], Coroutine[None, None, None]]
"""Is run once the server listens, with its port: loads what shall be loaded, and tells the user."""


async def serve(options: ServeOptions, folders: Folders, settings: Settings, prepare: Prepare) -> None:
    """Serve until a signal ends it.

    Raises:
        UsageError: others could reach the server without a token, or an option makes no sense.
        ServerError: another server holds the data folder, or the address cannot be bound.
        ModelError: the model is not here, or its file cannot be used.
        Exception: whatever `prepare` raises.
    """
    require_token(options.host, options.token_file)
    tokens = () if options.token_file is None else read_or_create_tokens(options.token_file)
    rules = GuardRules.for_bind(options.host, options.allow_hosts, options.allow_origins, tokens)
    _leave_no_core_dumps()
    logging.basicConfig(format="pinyon: %(message)s", level=logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancel)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(data_folder_held(folders))
        listener = stack.enter_context(_listen(options.host, options.port))
        pinned = None if options.model is None else Store(folders.models).resolve(options.model).path
        service = await stack.enter_async_context(Service(folders, settings, several=True, pinned=pinned))
        token_file = None if options.token_file is None else str(options.token_file.absolute())
        me = ServerFile(_own_url(options.host, listener), os.getpid(), secrets.token_hex(32), token_file)
        stack.enter_context(published(folders, me))
        metrics = Metrics()
        door = Door(service, options.model, settings, metrics)
        app = make_app(door, metrics.registry, me.nonce, with_docs=is_loopback(options.host))
        port = listener.getsockname()[1]
        await _run(_Server.of(Guard(app, rules)), listener, door, prepare(service, port))


async def _run(
    server: "_Server", listener: socket.socket, door: Door, preparation: Coroutine[None, None, None]
) -> None:
    """Serve until the end, and prepare meanwhile. A preparation that fails is the end, and its error is raised."""
    with _on_signals(lambda grace_s: server.end(door, grace_s)):
        serving = asyncio.create_task(server.serve([listener]))
        preparing = asyncio.create_task(preparation)
        await asyncio.wait((serving, preparing), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            preparing.cancel()
        elif preparing.exception() is not None:
            server.should_exit = True
        await serving
    with contextlib.suppress(asyncio.CancelledError):
        await preparing


class _Server(uvicorn.Server):
    """uvicorn's server; its signals are this module's."""

    @classmethod
    def of(cls, app: Guard) -> Self:
        return cls(
            uvicorn.Config(
                app,
                http=GuardedConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def end(self, door: Door, grace_s: float) -> None:
        """Take nothing new, let answers finish within the grace, then stop serving."""
        if (answers := door.running + door.waiting) > 0:
            _log.warning("shutting down: open answers (%d) get %g s to finish", answers, grace_s)
        await door.drain(grace_s)
        self.should_exit = True


@contextlib.contextmanager
def _on_signals(end: Callable[[float], Coroutine[None, None, None]]) -> Iterator[None]:
    """Run `end` for the first signal that asks for it, with the grace; a second Ctrl+C runs it with none, a third is Python's.

    A signal that this process was started to ignore (nohup) stays ignored. Windows has only Python's Ctrl+C.
    """
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def begin(*, is_hurried: bool) -> None:
        if not ending:
            ending.append(loop.create_task(end(SHUTDOWN_GRACE_S - LAST_WORDS_S)))
        elif is_hurried:
            loop.remove_signal_handler(signal.SIGINT)
            ending.append(loop.create_task(end(0)))

    with contextlib.ExitStack() as stack:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if os.name == "posix" and number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, partial(begin, is_hurried=name == "SIGINT"))
                stack.callback(loop.remove_signal_handler, number)
        yield


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; of a name with several addresses the first IPv4 one counts, as for most clients."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(
                f"port {port} of {host} is in use: end the program that listens there, or choose another port with "
                "--port (0 takes a free one)"
            ) from error
        raise ServerError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def _own_url(host: str, listener: socket.socket) -> str:
    """Where commands of this machine find the server: an address to connect to, by a name that the guard knows."""
    if is_wildcard(host):
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://{bracketed(host)}:{listener.getsockname()[1]}"


def _is_no_cancel(record: logging.LogRecord) -> bool:
    """Whether uvicorn logs anything else than an answer that was still open at the very end."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _leave_no_core_dumps() -> None:
    """Memory holds prompts and the token; a crash must not write them to disk."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  POSIX only

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
