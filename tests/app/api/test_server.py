"""The server process' own part: its socket, its signals and its end, around a service that does what the test says."""

import asyncio
import os
import resource
import signal
import socket
from types import SimpleNamespace

import httpx
import pytest

from pinyon.app.api import server
from pinyon.app.api.server import ServeOptions, serve
from pinyon.app.errors import ServerError, UsageError
from pinyon.app.running import read_server
from pinyon.app.settings import Folders, Settings

OPTIONS = ServeOptions("127.0.0.1", 0)


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """What the server sets as limits of this process; they cannot be raised again."""
    made = []
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: made.append(limit))
    return made


class FakeDoor:
    """Stands for the door: one answer is open until `emptied`."""

    def __init__(self):
        self.running, self.waiting, self.is_draining = 1, 0, False
        self.emptied = asyncio.Event()
        self.graces_s = []

    async def drain(self, grace_s):
        self.is_draining = True
        self.graces_s.append(grace_s)
        await self.emptied.wait()


@pytest.fixture
def door(monkeypatch):
    """The door of the server that the test starts, whose application answers with what the door does."""
    made = FakeDoor()

    def make_app(*_arguments, **_options):
        async def app(_scope, _receive, send):
            status = 503 if made.is_draining else 200
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        return app

    monkeypatch.setattr(server, "Door", lambda *_arguments: made)
    monkeypatch.setattr(server, "make_app", make_app)
    return made


async def nothing(_service, _port):
    pass


class Started:
    """A server in this process."""

    def __init__(self, folders, options=OPTIONS):
        self.folders = folders
        self.ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(serve(options, folders, Settings(), self._prepare))

    async def _prepare(self, _service, port):
        self.ready.set_result(f"http://127.0.0.1:{port}")

    async def status(self):
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(await self.ready)).status_code


async def test_a_signal_lets_answers_finish_while_new_requests_are_told_to_come_back(folders, door):
    started = Started(folders)
    assert await started.status() == 200
    assert read_server(folders).url == await started.ready
    os.kill(os.getpid(), signal.SIGTERM)
    while not door.is_draining:
        await asyncio.sleep(0.001)
    assert await started.status() == 503
    os.kill(os.getpid(), signal.SIGTERM)  # a second one changes nothing
    assert await started.status() == 503
    assert not started.task.done()
    door.emptied.set()
    await started.task
    assert door.graces_s == [8]
    assert read_server(folders) is None
    with pytest.raises(httpx.ConnectError):
        await started.status()


@pytest.fixture
def hang_up_counts():
    """As in a terminal; under nohup these tests would be started with the signal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_counts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_each_of_three_signals_ends_a_server_without_answers(folders, door, number):
    door.emptied.set()
    started = Started(folders)
    await started.ready
    os.kill(os.getpid(), number)
    await started.task


async def test_a_signal_that_was_ignored_at_the_start_stays_ignored(folders, door):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        started = Started(folders)
        await started.ready
        os.kill(os.getpid(), signal.SIGHUP)
        assert await started.status() == 200
        assert not door.is_draining
    finally:
        signal.signal(signal.SIGHUP, before)
    door.emptied.set()
    os.kill(os.getpid(), signal.SIGTERM)
    await started.task


async def test_a_second_ctrl_c_ends_answers_now_and_a_third_is_python_s(folders, door):
    started = Started(folders)
    await started.ready
    os.kill(os.getpid(), signal.SIGINT)
    while door.graces_s == []:
        await asyncio.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    while len(door.graces_s) < 2:
        await asyncio.sleep(0.001)
    assert door.graces_s == [8, 0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    door.emptied.set()
    await started.task


async def test_a_signal_ends_what_is_prepared(folders, door):
    door.emptied.set()
    began, ended = asyncio.Event(), []

    async def load(_service, _port):
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    task = asyncio.create_task(serve(OPTIONS, folders, Settings(), load))
    await began.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert ended == [True]


async def test_a_preparation_that_fails_ends_the_server_with_its_error(folders, door):
    async def fail(_service, _port):
        raise ServerError("no room")

    with pytest.raises(ServerError, match="no room"):
        await serve(OPTIONS, folders, Settings(), fail)
    assert read_server(folders) is None


async def test_a_port_in_use_is_told_with_what_to_do(folders):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=rf"port {port} of 127\.0\.0\.1 is in use.*--port"):
            await serve(ServeOptions("127.0.0.1", port), folders, Settings(), nothing)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_here_is_told(folders, tmp_path, host):
    with pytest.raises(ServerError, match=f"cannot listen on {host}, port 0"):
        await serve(ServeOptions(host, 0, token_file=tmp_path / "token"), folders, Settings(), nothing)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ServeOptions("0.0.0.0", 0), "--token-file"),
        (ServeOptions("127.0.0.1", 0, allow_origins=("*",)), "--allow-origin"),
        (ServeOptions("127.0.0.1", 0, allow_hosts=("a:1",)), "--allow-host"),
    ],
    ids=["no token", "any origin", "a port"],
)
async def test_who_is_let_in_is_settled_before_anything_is_opened(folders, tmp_path, options, words):
    with pytest.raises(UsageError, match=words):
        await serve(options, folders, Settings(), nothing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "family", "url"),
    [
        ("127.0.0.1", socket.AF_INET, "http://127.0.0.1:7"),
        ("localhost", socket.AF_INET, "http://localhost:7"),
        ("0.0.0.0", socket.AF_INET, "http://127.0.0.1:7"),
        ("", socket.AF_INET, "http://127.0.0.1:7"),
        ("::1", socket.AF_INET6, "http://[::1]:7"),
        ("::", socket.AF_INET6, "http://[::1]:7"),
        ("192.0.2.1", socket.AF_INET, "http://192.0.2.1:7"),
    ],
)
def test_commands_find_the_server_by_a_name_that_it_answers_to(host, family, url):
    listener = SimpleNamespace(family=family, getsockname=lambda: ("", 7))
    assert server._own_url(host, listener) == url


async def test_a_crash_writes_no_memory_to_disk(folders, door, limits):
    door.emptied.set()
    started = Started(folders)
    await started.ready
    assert limits == [(resource.RLIMIT_CORE, (0, 0))]
    os.kill(os.getpid(), signal.SIGTERM)
    await started.task
