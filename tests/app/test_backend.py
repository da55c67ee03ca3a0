"""Where a command's model is: in the server if there is one, else here; and what becomes of it when another one is wanted."""

import asyncio
import os
import signal
import sys

import pytest
from asking import end_of, text_of
from command_line import serving
from tiny_models import write_tiny_llama

from pinyon.app import kv_files, remote
from pinyon.app.ask import Ask, RawText, SamplingChoice
from pinyon.app.backend import Backend
from pinyon.app.errors import FolderInUseError
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings
from pinyon.engine.errors import EngineError, ModelLoadError
from pinyon.engine.events import FailureKind, Removed
from pinyon.models.disk import private_folder
from pinyon.models.errors import ModelNotFoundError
from pinyon.models.memory.kv import KvType

pytestmark = pytest.mark.model

SETTINGS = Settings(threads=1, cache_disk_mib=100)
TALK = "This was said between two people, and to nobody else; they went on for a while. "


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture
async def backend(folders):
    async with Backend(folders, SETTINGS) as made:
        yield made


@pytest.fixture
def other(tmp_path):
    return write_tiny_llama(tmp_path / "other.gguf", seed=1)


def ask(prompt=TALK, conversation=None):
    return Ask(RawText(prompt), SamplingChoice(temperature=0), 8, conversation=conversation)


async def answered(model, asked):
    """Return the text of an answer, and its last event."""
    events = [event async for event in model.generate(asked)]
    return text_of(events), end_of(events)


# Without a server


async def test_before_anything_is_loaded_there_is_no_model_and_no_meter(backend):
    assert (backend.model, backend.url, await backend.meters()) == (None, None, None)


async def test_without_a_server_the_model_runs_here(backend, tiny):
    fractions = []
    model = await backend.load(str(tiny), 200, fractions.append)
    assert (backend.model, backend.url) == (model, None)
    assert (model.name, model.context_tokens, fractions[-1]) == ("tiny", 200, 1)
    assert (await backend.meters()).cells == 200
    assert await backend.load(str(tiny)) is model


async def test_where_none_is_named_the_settings_say_which(folders, tiny):
    async with Backend(folders, Settings(model=str(tiny), threads=1)) as backend:
        assert (await backend.load(None)).name == "tiny"
    async with Backend(folders, SETTINGS) as backend:
        with pytest.raises(ModelNotFoundError, match="no model is here yet"):
            await backend.load(None)


async def test_another_model_or_context_takes_the_place_of_the_one_before(backend, tiny, other):
    first = await backend.load(str(tiny))
    pid = await first._engine.pid()
    second = await backend.load(str(other))
    assert (backend.model, second.name) == (second, "other")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (await backend.load(str(tiny), 100)).context_tokens == 100


async def test_what_cannot_be_loaded_leaves_the_model_that_is_there(backend, tiny, tmp_path):
    model = await backend.load(str(tiny))
    with pytest.raises(ModelNotFoundError):
        await backend.load(str(tmp_path / "missing.gguf"))
    with pytest.raises(EngineError, match="9,999"):
        await backend.load(str(tiny), 9999)
    assert backend.model is model
    assert (await answered(model, ask()))[1].usage.completion_tokens == 8


async def test_a_model_that_fails_to_load_can_be_followed_by_another(backend, tiny, other, tmp_path):
    await backend.load(str(tiny))
    damaged = write_tiny_llama(tmp_path / "damaged.gguf", metadata={"llama.feed_forward_length": 77})
    with pytest.raises(ModelLoadError, match="damaged"):
        await backend.load(str(damaged))
    assert (backend.model, await backend.meters()) == (None, None)
    assert (await backend.load(str(other))).name == "other"


async def test_a_cancelled_load_ends_its_process(backend, tiny, monkeypatch):
    hanging = (sys.executable, "-c", "import sys; sys.stdin.read()")
    monkeypatch.setattr("pinyon.engine.client.EngineClient.__init__.__defaults__", (hanging,))
    loading = asyncio.create_task(backend.load(str(tiny)))
    while not (backend._service and (slots := backend._service._residents.here) and slots[0].engine._process):
        await asyncio.sleep(0.01)
    process = slots[0].engine._process
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert process.dead.done()
    assert backend.model is None
    monkeypatch.undo()
    assert (await backend.load(str(tiny))).name == "tiny"


@pytest.mark.model
async def test_the_type_of_kv_that_is_asked_for_is_the_engine_s(backend, smollm2):
    model = await backend.load(str(smollm2), 256, kv_type=KvType.Q4_0)
    (slot,) = backend._service._residents.here
    assert (slot.config.kv_type, slot.config.context_tokens, model.kv_type) == ("q4_0", 256, "q4_0")


async def test_the_room_for_models_is_known_where_one_runs(backend, tiny):
    assert await backend.room() is None
    await backend.load(str(tiny))
    room = await backend.room()
    assert room.models == ("tiny",)
    assert room.most.ram_bytes > room.beside.ram_bytes


async def test_leaving_ends_the_process_and_frees_the_folder(folders, tiny):
    async with Backend(folders, SETTINGS) as backend:
        pid = await (await backend.load(str(tiny)))._engine.pid()
        with pytest.raises(FolderInUseError), kv_files.held(folders.kv):
            pytest.fail("the backend has it")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with kv_files.held(folders.kv):
        assert backend.model is None


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_conversation_is_forgotten_with_and_without_an_engine(folders, tiny, is_loaded):
    async with Backend(folders, SETTINGS) as first:
        await answered(await first.load(str(tiny)), ask(conversation="talk"))
    async with Backend(folders, SETTINGS) as second:
        if is_loaded:
            await second.load(str(tiny))
        assert (await second.forget("talk")).blocks == 2
        assert await second.forget("talk") == Removed()
        assert (await answered(await second.load(str(tiny)), ask()))[1].cache.cached == 0


async def test_a_folder_that_another_process_uses_is_told(folders, backend):
    private_folder(folders.kv)
    with kv_files.held(folders.kv), pytest.raises(FolderInUseError, match="another process"):
        await backend.forget("talk")


# With a server


@pytest.fixture
async def server(folders, tmp_path, tiny):
    def started():
        return serving(tmp_path, "--model", str(tiny), PINYON_THREADS="1", PINYON_CACHE_DISK_MIB="100")

    with started() as made:
        made.again = started
        yield made


async def test_the_server_s_model_is_used_as_if_it_was_loaded_here(folders, backend, server, tiny, other):
    model = await backend.load(None)
    assert (backend.url, backend.model, model.name) == (server.url, model, "tiny")
    assert (await backend.meters()).cells == 256
    assert (await backend.room()).models == ("tiny",)
    assert await model.count(TALK) == len(TALK)
    text, end = await answered(model, ask(conversation="talk"))
    foretold = await model.estimate(ask())
    assert (foretold.prompt_tokens, foretold.resident) == (end.usage.prompt_tokens, len(TALK) - 1)
    assert len(model.digest) == 64
    while not (await backend.meters()).kv_ram_bytes:
        await asyncio.sleep(0.01)
    assert (await backend.forget("talk")).blocks in {1, 2}, "its end may not have been stored yet"
    assert (await model.estimate(ask())).cached == 0
    assert (await backend.load(str(other))).name == "other"
    assert (await backend.meters()).cells == 256
    async with Service(folders, SETTINGS) as service:
        assert (await answered(await service.load(str(tiny)), ask()))[0] == text


async def test_a_server_that_dies_is_followed_by_another_or_by_this_process(backend, server, tiny):
    model = await backend.load(None)
    server.send_signal(signal.SIGKILL)
    server.wait(10)
    assert (await answered(model, ask()))[1].kind is FailureKind.ENGINE_CRASH
    assert await backend.meters() is None
    with server.again() as second:
        await backend.load(None)
        assert backend.url == second.url
        second.send_signal(signal.SIGKILL)
        second.wait(10)
    model = await backend.load(str(tiny))
    assert backend.url is None
    assert (await answered(model, ask()))[1].usage.completion_tokens == 8


async def test_a_model_that_runs_here_stays_here_when_a_server_comes(backend, tiny, monkeypatch):
    model = await backend.load(str(tiny))
    monkeypatch.setattr(remote, "find_server", lambda _folders: pytest.fail("it is not looked for"))
    assert await backend.load(str(tiny)) is model
