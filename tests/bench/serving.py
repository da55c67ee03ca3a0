"""What the benchmarks of the HTTP door share: servers that are started and ended, and clients that stream from them."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
import msgspec
import psutil

START_S, END_S = 120.0, 15.0
PINYON = (sys.executable, "-m", "pinyon")


@dataclass(frozen=True)
class Server:
    """A server that is ready to answer."""

    url: str
    pid: int

    def family_cpu_s(self) -> float:
        """Return the CPU time of the process and its children so far, in the kernel's hundredths of a second."""
        process = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)


@contextlib.contextmanager
def pinyon_server(model: str, home: str, *, context_tokens: int, command: Sequence[str] = PINYON) -> Iterator[Server]:
    """Run `pinyon serve`, its model loaded, with folders of its own under `home`."""
    port = _free_port()
    arguments = (*command, "serve", "-m", model, "--context", str(context_tokens), "--port", str(port), "--preload")
    environment = {**os.environ, "PINYON_HOME": home}
    with _running(arguments, environment, port, "/health/ready") as server:
        yield server


@contextlib.contextmanager
def llama_server(
    program: str, model: str, *, context_tokens: int, threads: int, slots: int, options: Sequence[str] = ()
) -> Iterator[Server]:
    """Run llama.cpp's server. The store of past prompts is off: prompts that never come again would only pay for it."""
    port = _free_port()
    settings = {"-m": model, "-c": context_tokens, "-np": slots, "-t": threads, "--port": port, "--cache-ram": 0}
    arguments = (program, *(str(part) for setting in settings.items() for part in setting), "--no-webui", *options)
    with _running(arguments, os.environ, port, "/health") as server:
        yield server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running(arguments: Sequence[str], environment: Mapping[str, str], port: int, ready_path: str) -> Iterator[Server]:
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            if not _becomes_ready(process, url + ready_path):
                log.seek(0)
                raise SystemExit(f"invalid run: {arguments[0]} did not start: {log.read()[-2000:].decode()}")
            yield Server(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _becomes_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return True
        time.sleep(0.1)
    return False


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class _Message(msgspec.Struct, frozen=True):
    """What these benchmarks read of a server-sent event, of either route and either server."""

    choices: tuple[_Choice, ...] = ()
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(choice.text or choice.delta.content or "" for choice in self.choices)


@dataclass(frozen=True)
class Streamed:
    """One answer as it arrived. Times are the monotonic clock's, which all processes of a machine share on Linux."""

    sent: float
    texts: tuple[tuple[float, str], ...]
    """When each event with text came, and its text."""
    finish_reason: str
    usage: Usage

    @property
    def first(self) -> float:
        return self.texts[0][0]


async def wave(server: Server, path: str, bodies: Sequence[Mapping[str, object]]) -> tuple[list[Streamed], float]:
    """Stream the answers to all bodies at once; return them and the seconds from the first request to the last end."""
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        started = time.monotonic()
        answers = await asyncio.gather(*(_streamed(client, path, body) for body in bodies))
        elapsed = time.monotonic() - started
    return [_parsed(sent, parts) for sent, parts in answers], elapsed


async def streamed(
    client: httpx.AsyncClient, path: str, body: Mapping[str, object], until: asyncio.Event | None = None
) -> list[float]:
    """Stream an answer to its end, or until the event; return when each event with text came, by the monotonic clock."""
    times = await streamed_or_refused(client, path, body, until)
    if not times and (until is None or not until.is_set()):
        raise SystemExit("invalid run: an answer was refused, or is empty")
    return times


async def streamed_or_refused(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, object],
    until: asyncio.Event | None = None,
    on_first: Callable[[], None] = lambda: None,
) -> list[float]:
    """As `streamed`; of what is refused since there is too much to do, nothing came. `on_first` is called with the first text."""
    times: list[float] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code in {429, 503}:
            return times
        if response.status_code != 200:
            raise SystemExit(f"invalid run: {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {") and msgspec.json.decode(line[6:], type=_Message).text:
                times.append(time.monotonic())
                if len(times) == 1:
                    on_first()
            if until is not None and until.is_set():
                break
    return times


async def _streamed(
    client: httpx.AsyncClient, path: str, body: Mapping[str, object]
) -> tuple[float, list[tuple[float, bytes]]]:
    """Return when a request was sent, and what came when. Reading it waits: both servers need the CPU now."""
    sent = time.monotonic()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json={**body, **stream}) as response:
        if response.status_code != 200:
            raise SystemExit(f"invalid run: {response.status_code}: {(await response.aread()).decode()}")
        return sent, [(time.monotonic(), part) async for part in response.aiter_raw()]


def _parsed(sent: float, parts: Sequence[tuple[float, bytes]]) -> Streamed:
    messages, rest = [], b""
    for at, part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        payloads = [event.removeprefix(b"data: ") for event in events]
        messages += [(at, msgspec.json.decode(each, type=_Message)) for each in payloads if each.startswith(b"{")]
    texts = tuple((at, message.text) for at, message in messages if message.text)
    reasons = [choice.finish_reason for _, message in messages for choice in message.choices if choice.finish_reason]
    usages = [message.usage for _, message in messages if message.usage is not None]
    if not (texts and reasons and usages):
        raise SystemExit(f"invalid run: an answer without text, end or usage: {b''.join(part for _, part in parts)!r}")
    return Streamed(sent, texts, reasons[-1], usages[-1])
