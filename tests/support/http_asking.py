"""Ways to ask an application: whole requests, and visitors that leave or stop reading at any moment."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fake_service import FakeServer
from sse_stream import Answer, SseStream, read_stream, streamed_answer, strict_json, whole_answer
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from pinyon.app.api.connection import GuardedConnection
from pinyon.app.api.guard import Guard, GuardRules

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def chat_body(**fields: object) -> dict[str, object]:
    return {"messages": HI, **fields}


def text_body(**fields: object) -> dict[str, object]:
    """A prompt, and room for an answer that ends by itself."""
    return {"prompt": "Hi", "max_tokens": 1000, **fields}


class Api:
    """A server's routes, asked without a socket. Streams come whole."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def post(self, path: str, body: object) -> httpx.Response:
        """Send a body, which may be text that is no JSON."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return await self.client.post(path, content=content)

    async def whole(self, path: str, body: dict[str, object]) -> Answer:
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return whole_answer(strict_json(response.text))

    async def stream(self, path: str, body: dict[str, object]) -> SseStream:
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        return read_stream(response.content)

    async def streamed(self, path: str, body: dict[str, object]) -> Answer:
        options = {**(body.get("stream_options") or {}), "include_usage": True}
        stream = await self.stream(path, {**body, "stream_options": options})
        return streamed_answer(stream, wants_usage=True)

    async def both(self, path: str, body: dict[str, object]) -> Answer:
        """Ask with and without a stream; return the answer, which is the same."""
        whole = await self.whole(path, body)
        streamed = await self.streamed(path, {"seed": whole.seed, **body})
        assert whole == streamed
        return whole

    async def refused(self, path: str, body: object, status: int = 400) -> dict:
        """Return the error object of a request that is refused, the same with and without a stream."""
        response = await self.post(path, body)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        document = strict_json(response.text)
        assert list(document) == ["error"]
        error = document["error"]
        assert list(error)[:4] == ["message", "type", "param", "code"]
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
        return error


class Visitor:
    """One request at the ASGI level. It is answered in a task; `leave` closes its connection, `stop_reading` makes writes wait."""

    def __init__(self, app: ASGIApp, path: str, body: dict[str, object]) -> None:
        self.sent: list[dict] = []
        self._body = json.dumps(body).encode()
        self._asked = False
        self._left = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.ensure_future(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        await self._reading.wait()
        self.sent.append(message)

    def leave(self) -> None:
        self._left.set()

    def stop_reading(self) -> None:
        self._reading.clear()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, 5)


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Serve the application on a port of this machine, with the server's guard and connections; yield its address."""
    guarded = Guard(app, GuardRules.for_bind("127.0.0.1"))
    config = uvicorn.Config(guarded, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: GuardedConnection(config, state, {}), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        async with asyncio.timeout(5):
            while state.connections or state.tasks:
                await asyncio.sleep(0)
