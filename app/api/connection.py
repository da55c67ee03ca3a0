"""One connection of the HTTP door: how long it may take to send a request, how long it may leave an answer unread, how many
there may be, and what is answered to bytes that are no request.

A peer that shuts down its sending side is treated as gone. A killed client looks just the same, and its answer must stop being
computed; scripts keep their side open until they have the answer.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pinyon.app import limits
from pinyon.app.api.guard import ANSWER_HEADERS, Refusal


class GuardedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol within limits, for `uvicorn.Config(http=GuardedConnection)`; a subclass can set its own."""

    max_connections = limits.MAX_CONNECTIONS
    header_bytes = limits.HEADER_BYTES
    receive_s = limits.RECEIVE_S
    blocked_write_s = limits.BLOCKED_WRITE_S
    keep_alive_s = limits.KEEP_ALIVE_S
    linger_s = limits.LINGER_S

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's own type
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = h11.Connection(h11.SERVER, self.header_bytes)
        self.timeout_keep_alive = self.keep_alive_s
        self._surplus = False
        self._refused = False
        self._receiving = False
        """Whether a request has begun to arrive and is not whole."""
        self._receive_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """What the kernel had not taken when the write deadline was set."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any byte that the kernel does not take counts as unread, also after the answer's end: a closing transport waits for it.
        transport.set_write_buffer_limits(high=0)
        self._surplus = len(self.connections) > self.max_connections
        if self._surplus:
            self.connections.discard(self)
        self._set_receive_deadline(self.linger_s if self._surplus else self.receive_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_receive_deadline()
        self._clear_write_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._surplus:  # answered only now: some clients drop an answer that comes before their request
            self._refuse(_too_many(self.max_connections))
            return
        if not self._receiving:
            self._clear_receive_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        """Called for new bytes, and at the end of an answer where a next request had been sent ahead."""
        super().handle_events()
        if self._refused:
            return
        state = self.conn.their_state
        self._receiving = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0] != b"")
        if not self._receiving:
            self._clear_receive_deadline()
        elif self._receive_deadline is None:
            self._set_receive_deadline(self.receive_s)

    def send_400_response(self, msg: str) -> None:
        """Called while uvicorn handles h11's error, which knows a better status than 400."""
        del msg
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(_malformed(status, self.header_bytes))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_write_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_write_deadline()

    def _should_upgrade(self) -> bool:
        """Never: another protocol class would leave these limits behind. The request is answered as plain HTTP."""
        return False

    def _receive_deadline_passed(self) -> None:
        if self._receiving and not self._refused:
            self._refuse(_late(self.receive_s))
        else:
            self.transport.abort()

    def _write_deadline_passed(self) -> None:
        """A peer that reads, if slowly, may go on: to resume, all must have been taken, which can last for minutes."""
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._set_write_deadline()
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application, then throw away what still arrives until the peer closes or lingers too long."""
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(_raw(refusal))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._set_receive_deadline(self.linger_s)

    def _set_receive_deadline(self, delay_s: float) -> None:
        self._clear_receive_deadline()
        self._receive_deadline = self.loop.call_later(delay_s, self._receive_deadline_passed)

    def _clear_receive_deadline(self) -> None:
        if self._receive_deadline is not None:
            self._receive_deadline.cancel()
            self._receive_deadline = None

    def _set_write_deadline(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._write_deadline = self.loop.call_later(self.blocked_write_s, self._write_deadline_passed)

    def _clear_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def _raw(refusal: Refusal) -> bytes:
    """The answer in bytes. Written past h11, whose state may forbid it a response."""
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in (*refusal.headers, *ANSWER_HEADERS)]
    return b"\r\n".join([*lines, b"", refusal.body])


def _too_many(limit: int) -> Refusal:
    retry = ((b"retry-after", str(limits.RETRY_AFTER_S).encode()),)
    return Refusal(503, "too_many_connections", f"{limit:,} connections are open, the most there may be", retry)


def _late(limit_s: float) -> Refusal:
    return Refusal(408, "request_timeout", f"the request was not received whole within {limit_s:g} s")


def _malformed(status: int, header_bytes: int) -> Refusal:
    match status:
        case 431:
            return Refusal(431, "headers_too_large", f"request line and headers take more than {header_bytes:,} bytes")
        case 501:
            return Refusal(501, "unsupported_transfer_encoding", "Transfer-Encoding must be chunked, or absent")
        case _:
            return Refusal(400, "malformed_request", "this is not a valid HTTP/1.1 request")
