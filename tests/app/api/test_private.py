"""The routes that commands attach by: who may use them, what they answer, and that nothing is computed for one that left."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from fake_service import FIT
from prometheus_client import CollectorRegistry

from pinyon.app import wire
from pinyon.app.api import private
from pinyon.app.api.app import make_app
from pinyon.app.api.door import Door
from pinyon.app.ask import Ask, RawText
from pinyon.app.errors import FolderInUseError, ModelSlotError
from pinyon.app.running import KEY_HEADER, key, proof
from pinyon.app.settings import Settings
from pinyon.engine.client import EngineState
from pinyon.engine.errors import ContextOverflowError, EngineError, ModelLoadError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Chunk, Finished, FinishReason, Progress, Removed, Timings, Usage
from pinyon.engine.meters import Meters, Vram
from pinyon.engine.protocol import FrameBuffer, Loading
from pinyon.models.errors import TemplateMissingError
from pinyon.models.memory.fit import Budget
from pinyon.models.memory.kv import KvType
from pinyon.models.model_record import Source

NONCE = "a nonce"
TOLD = ("a smaller context",)
KEY = {KEY_HEADER: key(NONCE)}
CHALLENGE = "ab" * 16
ASK = Ask(RawText("x"))
GENERATE = wire.Generate(b"/m.gguf", ASK)
ESTIMATE = Estimate(9, 1, 2, 3, 0.5, 1.5, is_measured=True)
METERS = Meters(cells=256, running=1, vram=(Vram("CUDA0", 1, 2),))
BEGUN = [Progress(0, 1), Progress(1, 1), Chunk(0, "a", (1,))]


ROOM = wire.Room(Budget(1 << 40, (("CUDA0", 5),), frozenset({"CUDA0"})), Budget(7), ("m",))


def finished(reason):
    return Finished((reason,), Usage(1, 1), Timings(0, 0, 0), 7)


class FakeModel:
    """Answers with BEGUN, and ends when it is let go or cancelled."""

    def __init__(self, name="m", error=None):
        self.name, self.context_tokens, self.threads, self.why_no_disk = name, 256, 2, ""
        self.record = SimpleNamespace(path=Path(f"/{name}.gguf"), name=name, source=Source.ADDED)
        self.state, self.compromises, self.memory = EngineState.READY, TOLD, wire.Memory.of(FIT, 9, TOLD)
        self.kv_type = "q8_0"
        self.state, self.fit, self.cache_bytes, self.compromises = EngineState.READY, FIT, 9, TOLD
        self.error = error
        self.digest = "ab" * 32
        self.may_end, self.cancelled, self.was_left = asyncio.Event(), False, False

    def is_called(self, name):
        return name in {self.name, str(self.record.path)}

    async def generate(self, ask):
        if self.error is not None:
            raise self.error
        try:
            for event in BEGUN:
                yield event
            await self.may_end.wait()
        except BaseException:
            self.was_left = True
            raise
        yield finished(FinishReason.CANCELLED if self.cancelled else FinishReason.STOP)

    async def meters(self):
        return METERS

    async def cancel(self, _ask_id):
        self.cancelled = True
        self.may_end.set()

    async def estimate(self, ask):
        if self.error is not None:
            raise self.error
        return ESTIMATE if ask == ASK else Estimate(0)

    async def count(self, text):
        if self.error is not None:
            raise self.error
        return len(text)


class FakeService:
    """Holds one model once it is loaded, which takes as long as `may_load` says."""

    def __init__(self, model):
        self.model, self.loaded, self.error = model, None, None
        self.wishes, self.kept_alive, self.loading = [], [], ()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.loads = asyncio.Event()
        self.engine_state = EngineState.READY
        self.store = None
        self.why_no_disk = "the setting cache_disk_mib is 0"
        self.cleared, self.forgotten = [], []

    async def forget(self, conversation):
        if self.error is not None:
            raise self.error
        self.forgotten.append(conversation)
        return Removed(4, 900)

    @property
    def models(self):
        return () if self.loaded is None else (self.loaded,)

    async def meters(self, path):
        return METERS if self.loaded is not None and path == self.loaded.record.path else None

    async def room(self):
        return ROOM

    async def clear(self, model, before_s):
        if self.error is not None:
            raise self.error
        self.cleared.append((model, before_s))
        return Removed(3, 700)

    @contextlib.asynccontextmanager
    async def using(
        self, name, context_tokens=None, on_progress=None, *, keep_alive=None, is_forced=False, kv_type=None
    ):
        self.wishes.append((context_tokens, is_forced, kv_type))
        self.kept_alive.append(keep_alive)
        self.loads.set()
        if on_progress is not None:
            on_progress(0.5)
        await self.may_load.wait()
        if self.error is not None:
            raise self.error
        if Path(name).stem != self.model.name:
            raise ModelSlotError("another model is loaded")
        self.loaded = self.model
        yield self.model


@pytest.fixture
def service():
    return FakeService(FakeModel())


@pytest.fixture
def door(service):
    return Door(service, None, Settings(model="m"), SimpleNamespace(ended=lambda *_: None))


@pytest.fixture
def app(door):
    return make_app(door, CollectorRegistry(), NONCE, with_docs=False)


@pytest.fixture
async def client(app):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as made:
        yield made


def decoded(body):
    return [wire.decode_answer(payload) for payload in FrameBuffer().feed(body)]


async def post(client, route, message):
    answer = await client.post(f"/pinyon/{route}", content=wire.encode(message), headers=KEY)
    assert answer.status_code == 200
    return decoded(answer.content)


async def refusal(client, route, message):
    (refused,) = await post(client, route, message)
    return refused.error()


async def test_identity_proves_the_nonce_and_does_not_tell_it(client):
    answer = await client.get("/pinyon/identity", params={"challenge": CHALLENGE})
    assert answer.json() == {"proof": proof(NONCE, CHALLENGE)}
    assert NONCE not in answer.text


@pytest.mark.parametrize("challenge", ["", "key", "ab" * 15, "ab" * 65, "zz" * 16])
async def test_what_is_no_challenge_is_not_answered(client, challenge):
    answer = await client.get("/pinyon/identity", params={"challenge": challenge})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "challenge")


@pytest.mark.parametrize(
    "headers", [{}, {KEY_HEADER: "ü".encode()}, {KEY_HEADER: proof(NONCE, CHALLENGE)}], ids=["none", "odd", "a proof"]
)
@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "status"),
        *(
            ("POST", route)
            for route in ("meters", "load", "generate", "cancel", "clear", "forget", "estimate", "count")
        ),
    ],
)
async def test_only_a_reader_of_the_server_s_file_gets_further(client, service, method, route, headers):
    answer = await client.request(method, f"/pinyon/{route}", content=wire.encode(GENERATE), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_attached")
    assert service.loaded is None


async def test_every_private_route_but_identity_needs_the_key(client):
    for route in private.router.routes:
        answer = await client.request(next(iter(route.methods)), route.path)
        assert answer.status_code == (400 if route.path == "/pinyon/identity" else 403), route.path


@pytest.mark.parametrize("path", [b"/m.gguf", None])
async def test_what_is_cached_is_cleared_up_to_the_age_that_was_asked_for(client, service, monkeypatch, path):
    monkeypatch.setattr("time.time", lambda: 1000.0)
    answer = await client.post("/pinyon/clear", content=wire.encode(wire.Clear(path, 60.0)), headers=KEY)
    assert msgspec.json.decode(answer.content, type=Removed) == Removed(3, 700)
    assert service.cleared == [(None if path is None else Path("/m.gguf"), 940.0)]


async def test_what_cannot_be_deleted_is_told(client, service):
    service.error = EngineError("not all of it could be deleted: Input/output error")
    answer = await client.post("/pinyon/clear", content=wire.encode(wire.Clear(None, 0.0)), headers=KEY)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, str(service.error))


async def test_status_before_and_after_a_load(client):
    async def status():
        return msgspec.json.decode((await client.get("/pinyon/status", headers=KEY)).content, type=wire.Status)

    before = await status()
    assert before.models == ()
    await post(client, "load", wire.Load(b"/m.gguf", None))
    after = await status()
    assert after.why_no_disk == "the setting cache_disk_mib is 0"
    (model,) = after.models
    assert (model.name, model.path, model.context_tokens, model.threads) == ("m", b"/m.gguf", 256, 2)
    assert (model.engine_state, model.running, model.waiting, model.meters) == ("ready", 0, 0, METERS)
    assert (model.memory.ram_bytes, model.memory.cache_bytes, model.memory.compromises) == (160, 9, TOLD)
    assert (after.engine_state, after.running, after.waiting, after.is_draining) == ("ready", 0, 0, False)


async def test_what_is_being_loaded_is_told(client, service):
    await post(client, "load", wire.Load(b"/m.gguf", None))
    slot = SimpleNamespace(name="n", path=Path("/n.gguf"), fit=FIT, cache_bytes=7, loaded_share=0.25)
    slot.config = SimpleNamespace(threads=3)
    service.loading = (slot,)
    answer = await client.get("/pinyon/status", headers=KEY)
    coming, ready = msgspec.json.decode(answer.content, type=wire.Status).models
    assert (coming.name, coming.path, coming.engine_state, coming.progress) == ("n", b"/n.gguf", "loading", 0.25)
    assert (coming.context_tokens, coming.threads, coming.memory.cache_bytes) == (4096, 3, 7)
    assert (coming.memory.taken, coming.meters) == (None, None)
    assert (ready.name, ready.engine_state, ready.progress) == ("m", "ready", None)


async def test_a_conversation_is_forgotten(client, service):
    answer = await client.post("/pinyon/forget", content=wire.encode(wire.Forget("talk")), headers=KEY)
    assert msgspec.json.decode(answer.content, type=Removed) == Removed(4, 900)
    assert service.forgotten == ["talk"]


async def test_who_has_another_key_cannot_tell_whether_a_conversation_is_there(client, service):
    """H5: there is one user; only the commands of that user name conversations."""
    for headers in ({}, {KEY_HEADER: "0" * 64}):
        answers = [
            await client.post("/pinyon/forget", content=wire.encode(wire.Forget(name)), headers=headers)
            for name in ("talk", "absent")
        ]
        assert [answer.status_code for answer in answers] == [403, 403]
        assert answers[0].content == answers[1].content
    assert service.forgotten == []


async def test_no_public_route_names_a_conversation(app):
    document = json.dumps(app.openapi())
    assert "/v1/chat/completions" in document
    assert '"conversation' not in document
    assert "{conversation" not in document


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineError("not all of it could be deleted"), 500),
        (OSError("Input/output error"), 500),
        (sqlite3.OperationalError("database is locked"), 500),
        (FolderInUseError("another process uses it"), 400),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_conversation_that_cannot_be_forgotten_is_told(client, service, error, status):
    service.error = error
    answer = await client.post("/pinyon/forget", content=wire.encode(wire.Forget("talk")), headers=KEY)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, str(error))


async def test_meters_are_null_until_a_model_is_loaded(client):
    async def meters(path=b"/m.gguf"):
        answer = await client.post("/pinyon/meters", content=wire.encode(wire.ReadMeters(path)), headers=KEY)
        return msgspec.json.decode(answer.content, type=Meters | None)

    assert await meters() is None
    await post(client, "load", wire.Load(b"/m.gguf", None))
    assert await meters() == METERS
    assert await meters(b"/other.gguf") is None


async def test_an_ask_is_estimated_and_a_text_counted_without_an_answer(client, service, door):
    assert await post(client, "estimate", GENERATE) == [ESTIMATE]
    assert await post(client, "count", wire.Count(b"/m.gguf", "four")) == [wire.Counted(4)]
    assert not service.model.was_left
    assert (door.running, door.waiting) == (0, 0)


@pytest.mark.parametrize(("route", "message"), [("estimate", GENERATE), ("count", wire.Count(b"/m.gguf", "x"))])
async def test_a_prompt_that_does_not_fit_is_told_with_its_figures(client, service, route, message):
    service.model.error = ContextOverflowError(300, 256)
    assert await post(client, route, message) == [service.model.error.as_event()]
    service.model.error = TemplateMissingError("no template: --no-template")
    assert isinstance(await refusal(client, route, message), TemplateMissingError)


@pytest.mark.parametrize(("path", "context"), [(b"/m.gguf", None), (b"/m.gguf", 256), (None, None)])
@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("kv_type", [None, KvType.Q8_0])
async def test_a_model_is_loaded_as_it_is_asked_for(client, service, path, context, is_forced, kv_type):
    loaded = wire.Loaded(b"/m.gguf", "m", 256, 2, "", "ab" * 32, TOLD, "q8_0")
    assert await post(client, "load", wire.Load(path, context, is_forced, kv_type)) == [loaded]
    assert service.wishes == [(context, is_forced, kv_type)]


async def test_the_room_is_told_to_commands_only(client):
    answer = await client.get("/pinyon/room", headers=KEY)
    assert msgspec.json.decode(answer.content, type=wire.Room) == ROOM
    assert (await client.get("/pinyon/room")).status_code == 403


async def test_a_load_that_takes_time_shows_how_far_it_is(client, service, monkeypatch):
    monkeypatch.setattr(private, "PROGRESS_S", 0.01)
    service.may_load.clear()
    loading = asyncio.create_task(post(client, "load", wire.Load(b"/m.gguf", None)))
    await service.loads.wait()
    await asyncio.sleep(0.05)  # later than the server's own timer on this loop
    service.may_load.set()
    *shown, last = await loading
    assert set(shown) == {Loading(0.5)}
    assert isinstance(last, wire.Loaded)


async def test_another_model_is_refused_in_the_service_s_words(client):
    await post(client, "load", wire.Load(b"/m.gguf", None))
    error = await refusal(client, "load", wire.Load(b"/other.gguf", None))
    assert isinstance(error, ModelSlotError)
    assert str(error) == "another model is loaded"


async def test_errors_are_told_as_they_are(client, service):
    service.error = ModelLoadError("llama.cpp refused it")
    assert str(await refusal(client, "load", wire.Load(b"/m.gguf", None))) == "llama.cpp refused it"
    service.error = None
    service.model.error = TemplateMissingError("no template: --no-template")
    assert isinstance(await refusal(client, "generate", GENERATE), TemplateMissingError)


async def test_a_fault_is_told_without_its_details(client, service, caplog):
    service.error = ZeroDivisionError("a detail")
    error = await refusal(client, "load", wire.Load(b"/m.gguf", None))
    assert type(error).__name__ == "ServerError"
    assert "a detail" not in str(error)
    assert "a fault in Pinyon itself" in caplog.text


async def test_events_are_the_engine_s(client, service):
    service.model.may_end.set()
    assert await post(client, "generate", GENERATE) == [*BEGUN, finished(FinishReason.STOP)]


async def test_a_cancel_ends_an_answer_in_good_order(client, door):
    answer = asyncio.create_task(post(client, "generate", GENERATE))
    while not door.running:
        await asyncio.sleep(0)
    assert await post(client, "cancel", wire.Cancel(ASK.id)) == []
    assert (await answer)[-1] == finished(FinishReason.CANCELLED)
    assert await post(client, "cancel", wire.Cancel(ASK.id)) == []


async def test_a_server_that_ends_takes_nothing_new_and_says_what_it_cut_off(client, door):
    answer = asyncio.create_task(post(client, "generate", GENERATE))
    while not door.running:
        await asyncio.sleep(0)
    await door.drain(0)
    assert (await answer)[-1].kind == "ShuttingDownError"
    count = wire.Count(b"/m.gguf", "x")
    for route, message in (
        ("load", wire.Load(None, None)),
        *((each, GENERATE) for each in ("generate", "estimate")),
        ("count", count),
    ):
        refused = await client.post(f"/pinyon/{route}", content=wire.encode(message), headers=KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


async def test_a_body_that_is_no_message_is_refused(client):
    for route in ("load", "generate", "cancel", "forget", "estimate", "count"):
        answer = await client.post(f"/pinyon/{route}", content=b"{}", headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


async def left(app, route, message, door, until):
    """Send a request whose client leaves once `until` is true."""
    sent = [{"type": "http.request", "body": wire.encode(message), "more_body": False}]
    seen = []

    async def receive():
        if sent:
            return sent.pop()
        while not until():
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(event):
        seen.append(event.get("body", b""))

    path = f"/pinyon/{route}"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(KEY_HEADER.lower().encode(), KEY[KEY_HEADER].encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }
    async with asyncio.timeout(5):
        await app(scope, receive, send)
    return decoded(b"".join(seen))


async def test_a_command_that_was_killed_is_not_computed_for(app, door, service):
    assert await left(app, "generate", GENERATE, door, lambda: door.running) == BEGUN
    assert service.model.was_left
    assert (door.running, door.waiting) == (0, 0)


async def test_a_command_that_was_killed_before_the_first_event_leaves_nothing(app, door, service):
    service.may_load.clear()
    assert await left(app, "generate", GENERATE, door, lambda: True) == []
    assert (door.running, door.waiting) == (0, 0)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize(("setting", "kept_s"), [(300, 300), (0, private.COMMAND_S)])
async def test_a_model_stays_at_least_until_the_next_request_of_the_same_command(service, setting, kept_s):
    door = Door(service, None, Settings(model="m", keep_alive_s=setting), SimpleNamespace(ended=lambda *_: None))
    app = make_app(door, CollectorRegistry(), NONCE, with_docs=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        await post(client, "load", wire.Load(b"/m.gguf", None))
        await post(client, "count", wire.Count(b"/m.gguf", "four"))
        await post(client, "estimate", GENERATE)
    assert [kept.seconds for kept in service.kept_alive] == [kept_s] * 3
