"""Attaching to a server: nothing is sent before the proof, and whatever becomes of the server is told in the local way."""

import asyncio
import contextlib
import hashlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from pinyon.app import remote, wire
from pinyon.app.ask import Ask, RawText
from pinyon.app.errors import BusyError, ModelSlotError, ServerError, ShuttingDownError
from pinyon.app.remote import RemoteModel, RemoteService, find_server
from pinyon.app.running import ServerFile, key, proof, published
from pinyon.app.settings import Folders
from pinyon.engine.errors import ContextOverflowError, DoesNotFitError, ProtocolError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Chunk, FailureKind, Finished, FinishReason, Progress, Removed, Timings, Usage
from pinyon.engine.file_system import FileSystem
from pinyon.engine.meters import Meters, Vram
from pinyon.engine.protocol import Loading
from pinyon.engine.weights_digest import file_identity, weights_digest
from pinyon.models.errors import TemplateMissingError
from pinyon.models.memory.fit import Budget
from pinyon.models.memory.kv import KvType

NONCE = "a nonce"
ASK = Ask(RawText("a secret prompt"))
DIGESTS = Path("/nowhere/weights")
LOADED = wire.Loaded(b"/m.gguf", "m", 256, 2, "", kv_type="q8_0")
FINISHED = Finished((FinishReason.STOP,), Usage(1, 1), Timings(0, 0, 0), 7)


HARMLESS_HEADERS = {b"host", b"accept", b"accept-encoding", b"connection", b"user-agent"}


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@contextlib.asynccontextmanager
async def answering(*answers):
    """A server that sends one of these raw answers to each connection, in order; what it received is in `requests`."""
    requests, left = [], iter(answers)

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        length = int(lengths[0]) if lengths else 0
        requests.append(head + await reader.readexactly(length))
        raw = next(left)
        writer.write(raw(requests[-1]) if callable(raw) else raw)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests=requests)


def http(body, status=b"200 OK"):
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def messages(*them):
    return http(b"".join(map(wire.encode, them)))


def refusal(status, text):
    return http(msgspec.json.encode({"error": {"message": text, "type": "", "param": None, "code": None}}), status)


def honest(request):
    challenge = request.split(b"challenge=")[1].split(b" ")[0].decode()
    return http(msgspec.json.encode({"proof": proof(NONCE, challenge)}))


async def found(folders, url, token_file=None):
    with published(folders, ServerFile(url, os.getpid(), NONCE, token_file)):
        return await find_server(folders)


@contextlib.asynccontextmanager
async def service(*answers):
    async with answering(*answers) as server:
        yield RemoteService(ServerFile(server.url, os.getpid(), NONCE), DIGESTS), server


async def test_a_server_that_proves_itself_is_found(folders):
    async with answering(honest) as server:
        assert (await found(folders, server.url)).url == server.url


async def test_every_proof_answers_a_new_challenge(folders):
    async with answering(honest, honest) as server:
        await found(folders, server.url)
        await found(folders, server.url)
        assert server.requests[0] != server.requests[1]
        first = honest(server.requests[0])
    async with answering(first) as server:  # what was overheard once proves nothing
        assert await found(folders, server.url) is None


@pytest.mark.parametrize(
    "answer",
    [
        http(b'{"proof": "%b"}' % proof("another nonce", "ab" * 16).encode()),
        http('{"proof": "ü"}'.encode()),
        http(b"{}"),
        http(b"<html>"),
        http(b"\xff"),
        http(b"x" * 70_000),
        http(b"", b"404 Not Found"),
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"",
    ],
    ids=["wrong", "no hex", "none", "page", "bytes", "long", "404", "smtp", "switch", "cut", "nothing"],
)
async def test_a_stranger_on_the_port_learns_nothing_but_a_challenge(folders, tmp_path, answer):
    token_file = tmp_path / "token"
    token_file.write_text("the-token-of-this-user")
    async with answering(answer) as server:
        assert await found(folders, server.url, str(token_file)) is None
        (request,) = server.requests
    assert request.startswith(b"GET /pinyon/identity?challenge=")
    lines = request.lower().split(b"\r\n")[1:]
    assert {line.split(b":")[0] for line in lines if line} <= HARMLESS_HEADERS


async def test_a_port_that_never_answers_costs_the_limit_only(folders, monkeypatch):
    monkeypatch.setattr(remote, "PROOF_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        assert await found(folders, f"http://127.0.0.1:{silent.getsockname()[1]}") is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://127.0.0.1:notaport", ""])
async def test_an_address_where_nobody_is_is_no_server(folders, url):
    assert await found(folders, url) is None


async def test_the_key_is_sent_once_the_server_has_proved_itself_and_the_token_never(folders, tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("the-token-of-this-user\n")
    async with answering(honest, messages(LOADED)) as server:
        await (await found(folders, server.url, str(token_file))).load(None, None, print)
    assert key(NONCE).encode() in server.requests[1]
    sent = b"".join(server.requests)
    assert NONCE.encode() not in sent
    assert b"the-token" not in sent


async def test_loading_is_shown_and_gives_the_model():
    async with service(messages(Loading(0.25), Loading(0.5), LOADED)) as (remote_service, server):
        shown = []
        model = await remote_service.load(None, 256, shown.append, kv_type=KvType.Q8_0)
    _head, body = server.requests[0].split(b"\r\n\r\n", 1)
    assert wire.decode_body(body, wire.Load) == wire.Load(None, 256, kv_type=KvType.Q8_0)
    assert model.kv_type == "q8_0"
    assert (shown, model.name, model.context_tokens, model.threads) == ([0.25, 0.5], "m", 256, 2)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (messages(wire.Refused.of(DoesNotFitError("9 > 8"))), DoesNotFitError, "9 > 8"),
        (messages(Loading(0.5), wire.Refused.of(ModelSlotError("held"))), ModelSlotError, "held"),
        (messages(Loading(0.5)), ServerError, "broke off"),
        (b"", ServerError, "does not answer any more"),
        (refusal(b"503 Service Unavailable", "closing"), BusyError, "closing"),
        (refusal(b"401 Unauthorized", "no token"), ServerError, "401: no token"),
        (http(b"<html>", b"500 Oops"), ServerError, "500: <html>"),
    ],
    ids=["does not fit", "slot", "broken off", "dead", "503", "401", "500"],
)
async def test_what_a_load_meets_is_raised(answer, error, words):
    async with service(answer) as (remote_service, _):
        with pytest.raises(error, match=words):
            await remote_service.load(None, None, lambda _: None)


async def test_a_clear_says_what_it_is_about_and_tells_what_has_gone():
    async with service(http(msgspec.json.encode(Removed(2, 300)))) as (remote_service, server):
        assert await remote_service.clear(Path("/m.gguf"), 60.0) == Removed(2, 300)
    head, body = server.requests[0].split(b"\r\n\r\n", 1)
    assert b"POST /pinyon/clear" in head
    assert key(NONCE).encode() in head
    assert wire.decode_body(body, wire.Clear) == wire.Clear(b"/m.gguf", 60.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "does not answer any more"),
        (http(b"[]"), "does not answer any more"),
        (refusal(b"500 Oops", "Input/output error"), "500: Input/output error"),
    ],
    ids=["dead", "not ours", "refused"],
)
async def test_a_clear_that_fails_is_told(answer, words):
    async with service(answer) as (remote_service, _):
        with pytest.raises(ServerError, match=words):
            await remote_service.clear(None, 0.0)


async def test_a_conversation_is_named_to_be_forgotten():
    async with service(http(msgspec.json.encode(Removed(2, 300)))) as (remote_service, server):
        assert await remote_service.forget("talk") == Removed(2, 300)
    head, body = server.requests[0].split(b"\r\n\r\n", 1)
    assert b"POST /pinyon/forget" in head
    assert wire.decode_body(body, wire.Forget) == wire.Forget("talk")


async def test_the_room_comes_as_the_server_told_it():
    room = wire.Room(Budget(9, (("CUDA0", 5),), frozenset({"CUDA0"})), Budget(7), ("m",))
    async with service(http(msgspec.json.encode(room))) as (remote_service, _server):
        assert await remote_service.room() == room


@pytest.mark.parametrize("meters", [None, Meters(cells=256, vram=(Vram("CUDA0", 1, 2),))])
async def test_meters_come_as_the_engine_told_them(meters):
    async with service(http(msgspec.json.encode(meters))) as (remote_service, server):
        assert await remote_service.meters(b"/m.gguf") == meters
    head, body = server.requests[0].split(b"\r\n\r\n", 1)
    assert b"POST /pinyon/meters" in head
    assert wire.decode_body(body, wire.ReadMeters) == wire.ReadMeters(b"/m.gguf")


async def test_an_estimate_and_a_count_come_as_the_model_told_them():
    told = Estimate(9, 1, 2, 3, 0.5, 1.5, is_measured=True)
    async with service(messages(told), messages(wire.Counted(4))) as (remote_service, server):
        model = RemoteModel(remote_service, LOADED)
        assert await model.estimate(ASK) == told
        assert await model.count("four") == 4
    bodies = [request.split(b"\r\n\r\n", 1)[1] for request in server.requests]
    assert wire.decode_body(bodies[0], wire.Generate) == wire.Generate(b"/m.gguf", ASK)
    assert wire.decode_body(bodies[1], wire.Count) == wire.Count(b"/m.gguf", "four")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (messages(ContextOverflowError(300, 256).as_event()), ContextOverflowError, "^the prompt has 300 tokens"),
        (messages(wire.Refused.of(TemplateMissingError("no template"))), TemplateMissingError, "no template"),
        (refusal(b"503 Service Unavailable", "closing"), BusyError, "closing"),
        (messages(), ServerError, "broke off"),
        (b"", ServerError, "does not answer any more"),
        (http(b"\x01\0\0\0\xc0"), ProtocolError, "another version"),
    ],
    ids=["overflow", "template", "503", "broken off", "dead", "not ours"],
)
async def test_what_an_estimate_meets_is_raised(answer, error, words):
    async with service(answer, answer) as (remote_service, _):
        model = RemoteModel(remote_service, LOADED)
        for call in (model.estimate(ASK), model.count("x")):
            with pytest.raises(error, match=words):
                await call


async def test_a_digest_that_the_server_did_not_know_yet_is_found_where_it_is_kept(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    loaded = wire.Loaded(bytes(path), "m", 256, 2, "")
    model = RemoteModel(RemoteService(ServerFile("", 1, NONCE), tmp_path / "weights"), loaded)
    assert model.digest == ""
    digest = weights_digest(path, file_identity(path), tmp_path / "weights", FileSystem()).hex()
    assert model.digest == digest == hashlib.sha256(b"weights").hexdigest()
    assert RemoteModel(model._service, msgspec.structs.replace(loaded, digest="ab")).digest == "ab"


async def events_of(answer, ask=ASK):
    async with service(answer) as (remote_service, server):
        return [event async for event in RemoteModel(remote_service, LOADED).generate(ask)], server


async def test_events_come_as_the_engine_gave_them():
    given = [Progress(0, 1), Chunk(0, "a", (1,), (), "thought"), FINISHED]
    events, server = await events_of(messages(*given))
    assert events == given
    body = server.requests[0].split(b"\r\n\r\n", 1)[1]
    assert wire.decode_body(body, wire.Generate) == wire.Generate(b"/m.gguf", ASK)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (messages(Chunk(0, "a"))[:-1], FailureKind.ENGINE_CRASH, "died while it answered"),
        (messages(Chunk(0, "a")), FailureKind.ENGINE_CRASH, "broke off its answer"),
        (messages(Chunk(0, "a"), LOADED), FailureKind.ENGINE_ERROR, "Loaded instead of an event"),
        (http(b"\x01\0\0\0\xc0"), FailureKind.ENGINE_ERROR, "another version"),
        (http(b"\xff\xff\xff\xff"), FailureKind.ENGINE_ERROR, "bytes"),
    ],
    ids=["died", "broken off", "not an event", "no message", "huge frame"],
)
async def test_an_answer_that_breaks_off_fails_in_one_event(answer, kind, words):
    *_, last = (await events_of(answer))[0]
    assert last.kind is kind
    assert words in last.message


async def test_a_number_too_large_for_the_engine_is_refused_as_it_is_without_a_server():
    events, server = await events_of(b"", Ask(RawText("x"), max_tokens=2**70))
    assert [(event.kind, event.message) for event in events] == [
        (FailureKind.INVALID_REQUEST, "a number has more than 64 bits")
    ]
    assert server.requests == []


async def test_refusals_of_an_ask_are_raised():
    with pytest.raises(TemplateMissingError, match="no template"):
        await events_of(messages(wire.Refused.of(TemplateMissingError("no template"))))
    with pytest.raises(ShuttingDownError):
        await events_of(messages(Chunk(0, "a"), wire.Refused.of(ShuttingDownError("closing"))))
    (failed,), _ = await events_of(refusal(b"413 Too Large", "the limit is 8,388,608 bytes"))
    assert failed.kind is FailureKind.DOES_NOT_FIT
    assert "8,388,608" in failed.message


async def test_a_cancel_names_the_ask_and_is_quiet_when_the_server_has_gone():
    async with service(http(b""), b"") as (remote_service, server):
        model = RemoteModel(remote_service, LOADED)
        await model.cancel("the-id")
        await model.cancel("the-id")
    assert wire.decode_body(server.requests[0].split(b"\r\n\r\n", 1)[1], wire.Cancel).ask_id == "the-id"


async def test_leaving_an_answer_early_closes_its_connection():
    closed = asyncio.Event()

    async def stream(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        frame = wire.encode(Progress(0, 1))
        writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        while await reader.read(65536):
            pass
        writer.close()
        closed.set()

    async with await asyncio.start_server(stream, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = RemoteModel(RemoteService(ServerFile(url, 1, NONCE), DIGESTS), LOADED)
        async with contextlib.aclosing(model.generate(ASK)) as events:
            assert await anext(events) == Progress(0, 1)
        async with asyncio.timeout(5):
            await closed.wait()
