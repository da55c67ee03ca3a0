"""Streams to clients that may leave at any moment: server-sent events, and waiting that a disconnect ends."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pinyon.app.limits import SSE_COMMENT_S

DONE: Final = b"data: [DONE]\n\n"

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client has closed its connection: whatever is answered now, nobody reads."""


def data_event(content: msgspec.Struct) -> bytes:
    """Return a server-sent event that carries an object as JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Do the work, unless the client leaves first: then it is cancelled.

    The request's body must have been read.

    Raises:
        ClientGoneError: the client has left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Stream(Response):
    """Sends the pieces of a generator as they come, its headers at once; closes the generator, then calls `close`, whatever happens.

    An exception of the generator ends the stream with the piece that `on_error` makes of it: the status went out long ago. `comment` gives the text of a comment that is sent when nothing else was for SSE_COMMENT_S, or None where the format has none:
    some clients and proxies give up on a connection that is silent for 30 seconds.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        on_error: Callable[[Exception], bytes],
        close: Callable[[], Awaitable[None]],
        *,
        comment: Callable[[], str] | None = None,
        media_type: str = "text/event-stream",
        silence_s: float = SSE_COMMENT_S,
    ) -> None:
        super().__init__(media_type=media_type, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._on_error = on_error
        self._close = close
        self._comment = comment
        self._silence_s = silence_s
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            with contextlib.suppress(ClientGoneError):
                async with contextlib.aclosing(self._pieces):
                    await until_disconnect(receive, self._send_all(send))
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last_sent = time.monotonic()
        commenting = asyncio.ensure_future(self._send_comments(send))
        try:
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._last_sent = time.monotonic()
        except Exception as error:  # noqa: BLE001  only the stream itself can tell
            await send({"type": "http.response.body", "body": self._on_error(error), "more_body": True})
        finally:
            commenting.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _send_comments(self, send: Send) -> None:
        while self._comment is not None:
            silent_s = time.monotonic() - self._last_sent
            if silent_s >= self._silence_s:
                await send(
                    {"type": "http.response.body", "body": f": {self._comment()}\n\n".encode(), "more_body": True}
                )
                self._last_sent, silent_s = time.monotonic(), 0.0
            await asyncio.sleep(self._silence_s - silent_s)
