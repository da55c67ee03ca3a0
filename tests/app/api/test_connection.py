"""Connections within limits: real sockets on loopback, tiny limits."""

import asyncio
import contextlib
import json
import socket

import psutil
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pinyon.app import limits
from pinyon.app.api.connection import GuardedConnection
from pinyon.app.api.guard import Guard, GuardRules

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
LATER = 0.05
"""Longer than the tiny limits."""
RULES = GuardRules.for_bind("127.0.0.1")


class Patient(GuardedConnection):
    receive_s = 60.0
    blocked_write_s = 60.0
    linger_s = 1.0
    max_connections = 3


class Hasty(Patient):
    receive_s = 0.02


class Pushy(Patient):
    blocked_write_s = 0.02


class Application:
    """Answers with the body's length. /slow takes its time, /flood never ends; both tell when their peer has left."""

    def __init__(self):
        self.left = asyncio.Event()
        self.release = asyncio.Event()
        self.served = []

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            body, more = body + message["body"], message["more_body"]
        self.served.append(scope["path"])
        if scope["path"] == "/slow":
            await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/flood":
            await self.flood(receive, send)
        elif scope["path"] == "/large":
            await send({"type": "http.response.body", "body": bytes(20 << 20)})
        else:
            await send({"type": "http.response.body", "body": str(len(body)).encode()})

    async def flood(self, receive, send):
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)
        assert leaving.result() == {"type": "http.disconnect"}
        self.left.set()


class Server:
    def __init__(self, app, state, port):
        self.app, self.state, self.port = app, state, port

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def talk(self, *pieces, pause_s=0.0, half_close=False):
        """Send the pieces, return all that comes back until the server closes."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if half_close:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            await hang_up(writer)

    async def connection(self):
        """The server's side of the one open connection."""
        while not self.state.connections:
            await asyncio.sleep(0)
        (connection,) = self.state.connections
        return connection

    async def emptied(self):
        async with asyncio.timeout(5):
            while self.state.connections:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def serving(protocol, app=None, guard=False):
    """The protocol on a port of its own, with uvicorn's configuration and without its main loop."""
    app = app or Application()
    wrapped = Guard(app, RULES) if guard else app
    config = uvicorn.Config(wrapped, http=protocol, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: config.http_protocol_class(config, state, {}), "127.0.0.1", 0)
    try:
        yield Server(app, state, listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        for connection in list(state.connections):
            connection.transport.abort()
        app.release.set()
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def hang_up(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


def refusal(answer):
    """Status and code of an answer that the connection itself gave."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"content-type: application/json" in head
    assert b"x-content-type-options: nosniff" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status(answer), error["code"]


# Receiving


async def test_a_request_is_answered_and_the_connection_stays_open():
    async with serving(Patient) as server:
        reader, writer = await server.connect()
        for _ in range(3):
            writer.write(POST + b"12345")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\n5\r\n0\r\n\r\n"
        await hang_up(writer)


async def test_a_silent_connection_is_closed_without_a_word():
    async with serving(Hasty) as server:
        assert await server.talk() == b""
        await server.emptied()


@pytest.mark.parametrize("begun", [b"G", GET[:-2], POST, POST + b"123", CHUNKED + b"5\r\n12345\r\n"])
async def test_a_request_that_does_not_end_is_answered_408(begun):
    async with serving(Hasty) as server:
        assert refusal(await server.talk(begun)) == (408, "request_timeout")
        await server.emptied()
        assert server.app.served == []


async def test_the_first_byte_of_a_request_sets_its_deadline_and_no_other_byte_moves_it():
    async with serving(Patient) as server:
        reader, writer = await server.connect()
        connection = await server.connection()
        while connection._receive_deadline is None:
            await asyncio.sleep(0)
        waiting_for_a_byte = connection._receive_deadline
        await asyncio.sleep(0.002)
        writer.write(GET[:1])
        while connection._receive_deadline is waiting_for_a_byte:
            await asyncio.sleep(0)
        receiving = connection._receive_deadline
        assert waiting_for_a_byte.cancelled()
        assert receiving.when() > waiting_for_a_byte.when()
        for byte in GET[1:-1]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
            assert connection._receive_deadline is receiving
        writer.write(GET[-1:])
        await reader.readuntil(b"0\r\n\r\n")
        assert receiving.cancelled()
        assert connection._receive_deadline is None
        await hang_up(writer)


@pytest.mark.parametrize("begun", [b"", POST])
async def test_planted_without_deadlines_the_silence_is_found(begun):
    async with serving(H11Protocol) as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.talk(begun), LATER)


class Lingering(Hasty):
    linger_s = 60.0


async def test_the_application_learns_at_once_that_the_body_will_not_end():
    async with serving(Lingering) as server:
        _, writer = await server.connect()
        writer.write(POST + b"123")
        await asyncio.wait_for(server.app.left.wait(), 5)
        assert len(server.state.connections) == 1
        await hang_up(writer)


async def test_a_refused_body_is_thrown_away_though_nobody_reads_it():
    """The application leaves so much unread that reading was paused; the peer must still get rid of the rest, and of us."""

    async def lazy(scope, receive, send):
        await lazy.release.wait()

    lazy.release = asyncio.Event()
    async with serving(Lingering, lazy) as server:
        reader, writer = await server.connect()
        writer.write(POST.replace(b"5", b"9999999") + bytes(1 << 20))
        assert refusal(await asyncio.wait_for(reader.read(), 5)) == (408, "request_timeout")
        writer.write(bytes(8 << 20))
        await asyncio.wait_for(writer.drain(), 5)
        await hang_up(writer)
        await server.emptied()


async def test_nothing_is_timed_any_more_once_the_peer_has_left():
    async with serving(Patient) as server:
        _, writer = await server.connect()
        writer.write(GET.replace(b"/", b"/flood", 1))
        connection = await server.connection()
        while connection._write_deadline is None:
            await asyncio.sleep(0)
        deadlines = [connection._write_deadline]
        writer.transport.abort()
        await server.emptied()
        _, writer = await server.connect()
        connection = await server.connection()
        deadlines.append(connection._receive_deadline)
        await hang_up(writer)
        await server.emptied()
        assert [deadline.cancelled() for deadline in deadlines] == [True, True]


async def test_a_long_answer_is_not_cut_by_the_deadline_for_receiving():
    async with serving(Hasty) as server:
        reader, writer = await server.connect()
        writer.write(GET.replace(b"/", b"/slow", 1))
        await asyncio.sleep(LATER)
        server.app.release.set()
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await hang_up(writer)


async def test_an_idle_connection_is_not_cut_but_its_next_request_has_the_deadline_again():
    async with serving(Hasty) as server:
        reader, writer = await server.connect()
        writer.write(GET)
        await reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(LATER)
        writer.write(POST + b"12345")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(POST)
        assert refusal(await asyncio.wait_for(reader.read(), 5)) == (408, "request_timeout")
        await hang_up(writer)


async def test_requests_sent_ahead_are_answered_in_order():
    async with serving(Hasty) as server:
        reader, writer = await server.connect()
        writer.write(GET.replace(b"/", b"/slow", 1) + GET.replace(b"/", b"/second", 1))
        await asyncio.sleep(LATER)
        assert server.app.served == ["/slow"]
        server.app.release.set()
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
        assert server.app.served == ["/slow", "/second"]
        await hang_up(writer)


@pytest.mark.parametrize("ahead", [POST + b"1", GET[:-2]])
async def test_half_a_request_sent_ahead_has_its_deadline_from_the_answer_before_it(ahead):
    async with serving(Hasty) as server:
        answers = await server.talk(GET + ahead)
        assert answers.startswith(b"HTTP/1.1 200 OK")
        assert refusal(answers[answers.index(b"HTTP/1.1 408") :]) == (408, "request_timeout")


async def test_a_deadline_within_an_answer_that_came_early_ends_the_connection():
    """An application may answer before it has the body; then nothing else can be said."""

    async def early(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert await receive() == {"type": "http.request", "body": b"", "more_body": True}
        await receive()

    early.release = asyncio.Event()
    async with serving(Hasty, early) as server:
        assert (await server.talk(POST)).endswith(b"1\r\nx\r\n")


async def test_a_peer_that_shuts_down_its_side_has_left():
    async with serving(Patient, guard=True) as server:
        assert await server.talk(GET.replace(b"/", b"/flood", 1), half_close=True, pause_s=0.01) != b""
        await asyncio.wait_for(server.app.left.wait(), 5)


# Writing


@pytest.mark.parametrize("path", [b"/flood", b"/large"])
async def test_a_peer_that_reads_nothing_is_cut_off(path):
    async with serving(Pushy) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(GET.replace(b"/", path, 1))
            while not server.app.served:
                await asyncio.sleep(0.001)
            await server.emptied()
            if path == b"/flood":
                await asyncio.wait_for(server.app.left.wait(), 5)


async def test_the_last_bytes_of_an_answer_count_as_unread_too():
    """A closing transport waits for its peer without end, and asks nobody to pause while it holds little."""

    async def nearly_stuck(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        (connection,) = nearly_stuck.connections
        while not connection.transport.get_write_buffer_size():
            await send({"type": "http.response.body", "body": bytes(1 << 10), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    nearly_stuck.release = asyncio.Event()
    async with serving(Pushy, nearly_stuck) as server:
        nearly_stuck.connections = server.state.connections
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(GET)
            await server.connection()
            await server.emptied()


async def test_a_peer_that_reads_again_in_time_is_not_cut_off():
    async with serving(Patient) as server:
        reader, writer = await server.connect()
        connection = await server.connection()
        writer.write(b"GET /large HTTP/1.0\r\nHost: localhost\r\n\r\n")
        while connection._write_deadline is None:
            await asyncio.sleep(0)
        blocked = connection._write_deadline
        answer = await asyncio.wait_for(reader.read(), 10)
        assert len(answer.partition(b"\r\n\r\n")[2]) == 20 << 20
        assert blocked.cancelled()
        assert connection._write_deadline is None
        await hang_up(writer)


async def test_a_peer_that_reads_slowly_is_cut_off_only_once_it_reads_nothing():
    async with serving(Patient) as server:
        reader, writer = await server.connect()
        connection = await server.connection()
        writer.write(GET.replace(b"/", b"/large", 1))
        while connection._write_deadline is None:
            await asyncio.sleep(0)
        for _ in range(3):
            before = connection.transport.get_write_buffer_size()
            async with asyncio.timeout(5):
                while connection.transport.get_write_buffer_size() == before:
                    await reader.read(1 << 16)
            pass_write_deadline(connection)
            assert not connection.transport.is_closing(), "it has read, though not all"
            assert not connection._write_deadline.cancelled(), "it is timed again"
        async with asyncio.timeout(5):
            while not connection.transport.is_closing():  # what was on its way may still go out
                pass_write_deadline(connection)
                await asyncio.sleep(0)
        await hang_up(writer)
        await server.emptied()


def pass_write_deadline(connection):
    """Let the time pass, without the time."""
    connection._write_deadline.cancel()
    connection._write_deadline_passed()


async def test_a_connection_without_a_next_request_is_closed():
    class Restless(Patient):
        keep_alive_s = 0.01

    async with serving(Restless) as server:
        assert (await server.talk(GET)).endswith(b"0\r\n\r\n")
        await server.emptied()


# Malformed and oversized


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400, "malformed_request")),
        (b"hello\r\n\r\n", (400, "malformed_request")),
        (b"GET / HTTP/1.1\r\n\r\n", (400, "malformed_request")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n", (400, "malformed_request")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA B: 1\r\n\r\n", (400, "malformed_request")),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", (400, "malformed_request")),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
            (501, "unsupported_transfer_encoding"),
        ),
        (CHUNKED + b"zz\r\n", (400, "malformed_request")),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\nzz\r\n"), (400, "malformed_request")),
        (CHUNKED + b"5;" + b"x" * 40_000, (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n", (431, "headers_too_large")),
        (b"GET /" + b"x" * (1 << 20), (431, "headers_too_large")),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-%d: 1\r\n" * 10_000 % tuple(range(10_000)),
            (431, "headers_too_large"),
        ),
    ],
)
async def test_what_is_no_request_is_answered_and_the_connection_closed(sent, expected, caplog):
    caplog.set_level("WARNING", logger="uvicorn.error")
    async with serving(Patient, guard=True) as server:
        assert refusal(await server.talk(sent)) == expected
        await server.emptied()
        assert server.app.served == []
    assert {record.message for record in caplog.records} == {"Invalid HTTP request received."}


async def test_many_headers_that_fit_are_refused_by_the_guard():
    lines = b"X: 1\r\n" * 1000
    async with serving(Patient, guard=True) as server:
        assert refusal(await server.talk(GET[:-2] + lines + b"\r\n")) == (431, "headers_too_large")


async def test_after_a_refusal_a_peer_that_stays_is_dropped():
    class Brief(Patient):
        linger_s = 0.02

    async with serving(Brief) as server:
        reader, writer = await server.connect()
        writer.write(b"hello\r\n\r\n")
        assert refusal(await reader.read()) == (400, "malformed_request")
        writer.write(b"more")
        await server.emptied()
        await hang_up(writer)


async def test_an_upgrade_is_ignored(caplog):
    upgrade = GET[:-2] + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    async with serving(Patient) as server:
        assert status(await server.talk(upgrade)) == 200
    assert "pgrade" not in caplog.text


# Bodies


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
async def test_a_declared_body_over_the_limit_is_refused_while_it_is_sent(expect):
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (expect, 9 << 20)
    async with serving(Patient, guard=True) as server:
        body = b"" if expect else bytes(9 << 20)
        assert refusal(await server.talk(head, body, half_close=True)) == (413, "request_too_large")
        assert server.app.served == []


async def flood_of_chunks(server, size_bytes):
    """Send chunks until the server closes or all is sent. Returns the answer's beginning and by how much the memory grew."""
    process = psutil.Process()
    before = highest = process.memory_info().rss
    reader, writer = await server.connect()
    writer.write(CHUNKED)
    piece = b"40000\r\n" + bytes(0x40000) + b"\r\n"
    answer = asyncio.create_task(reader.read(1 << 16))  # a reset later would take it away
    with contextlib.suppress(ConnectionError):
        for _ in range(size_bytes // 0x40000):
            writer.write(piece)
            await writer.drain()
            highest = max(highest, process.memory_info().rss)
    begun = await asyncio.wait_for(answer, 5)
    await hang_up(writer)
    return begun, highest - before


async def test_memory_does_not_grow_with_an_endless_body(monkeypatch):
    monkeypatch.setattr(limits, "LINGER_S", 0.2)
    async with serving(Patient, guard=True) as server:
        answer, grown_bytes = await flood_of_chunks(server, 64 << 20)
        assert refusal(answer) == (413, "request_too_large")
        assert grown_bytes < 20 << 20
        await server.emptied()


async def test_a_planted_application_that_keeps_an_endless_body_is_found():
    kept = []

    async def hoarder(scope, receive, send):
        while (message := await receive()).get("more_body"):
            kept.append(message["body"])

    hoarder.release = asyncio.Event()
    async with serving(Patient, hoarder) as server:
        _, grown_bytes = await asyncio.wait_for(flood_of_chunks_unanswered(server, 80 << 20, kept), 10)
        assert grown_bytes > 20 << 20


async def flood_of_chunks_unanswered(server, size_bytes, kept):
    process = psutil.Process()
    before = process.memory_info().rss
    reader, writer = await server.connect()
    writer.write(CHUNKED)
    for _ in range(size_bytes // 0x40000):
        writer.write(b"40000\r\n" + b"\1" * 0x40000 + b"\r\n")
        await writer.drain()
    while sum(map(len, kept)) < size_bytes:
        await asyncio.sleep(0.001)
    grown_bytes = process.memory_info().rss - before
    await hang_up(writer)
    return reader, grown_bytes


# How many


async def test_a_connection_too_many_is_answered_503_and_takes_no_place():
    class Held(Patient):
        linger_s = 60.0

    async with serving(Held) as server:
        held = [await server.connect() for _ in range(3)]
        while len(server.state.connections) < 3:
            await asyncio.sleep(0.001)
        for _ in range(2):
            answer = await server.talk(GET, bytes(1000))
            assert refusal(answer) == (503, "too_many_connections")
            assert b"retry-after: 5\r\n" in answer
        held.append(await server.connect())
        await hang_up(held[0][1])
        async with asyncio.timeout(5):
            while len(server.state.connections) > 2:
                await asyncio.sleep(0.001)
        assert status(await server.talk(GET[:-2] + b"Connection: close\r\n\r\n")) == 200
        for _, writer in held[1:]:
            await hang_up(writer)
        assert server.app.served == ["/"]


async def test_a_silent_connection_too_many_is_closed_soon():
    class Full(Patient):
        max_connections = 0
        linger_s = 0.02

    async with serving(Full) as server:
        assert await server.talk() == b""
        assert server.state.connections == set()


async def test_small_writes_are_not_held_back():
    async with serving(Patient) as server:
        _, writer = await server.connect()
        own = (await server.connection()).transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await hang_up(writer)


# The whole server


async def test_uvicorn_serves_with_it_and_shuts_down():
    app = Application()
    config = uvicorn.Config(
        Guard(app, RULES), port=0, http=GuardedConnection, lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    assert b"200 OK" in await reader.readuntil(b"0\r\n\r\n")
    bad_reader, bad_writer = await asyncio.open_connection("127.0.0.1", port)
    bad_writer.write(b"hello\r\n\r\n")
    assert refusal(await bad_reader.read()) == (400, "malformed_request")
    server.should_exit = True
    await asyncio.wait_for(running, 5)
    await hang_up(writer)
    await hang_up(bad_writer)
