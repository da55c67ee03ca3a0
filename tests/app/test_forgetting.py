"""Conversations through real processes: kept, found again, forgotten with and without an engine."""

import contextlib
import time

import pytest

from pinyon.app import kv_files
from pinyon.app.ask import Ask, RawText, SamplingChoice
from pinyon.app.errors import FolderInUseError
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings
from pinyon.engine.events import Chunk, Finished, Removed
from pinyon.models.disk import private_folder

pytestmark = pytest.mark.model

TALK = "This was said between two people, and to nobody else; they went on for a while. "
ELSE = "And this was said elsewhere, to someone else, about something else. " * 2


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


def service(folders):
    return Service(folders, Settings(threads=1, cache_disk_mib=100))


def ask(prompt, conversation=None, **fields):
    return Ask(RawText(prompt), SamplingChoice(temperature=0), 8, conversation=conversation, **fields)


async def answered(model, *arguments, **fields):
    """Return the text of an answer, and its end."""
    events = [event async for event in model.generate(ask(*arguments, **fields))]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Chunk)), events[-1]


def contents(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_conversation_that_is_forgotten_leaves_no_block_and_no_row(folders, tiny):
    async with service(folders) as first:
        model = await first.load(str(tiny))
        text, _ = await answered(model, TALK, "talk")
        await answered(model, f"{TALK}{text}? Go on.", "talk")
        await answered(model, ELSE, "else")
        await answered(model, TALK[:66] + "and so on.")  # its report quotes the conversation
        with pytest.raises(FolderInUseError), kv_files.held(folders.kv):
            pytest.fail("the service has it")
    assert b"talk" in contents(folders.kv)
    for path in folders.kv.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    async with service(folders) as second:
        model = await second.load(str(tiny))
        again = await answered(model, TALK, "talk")
        assert again[0] == text
        assert again[1].cache.disk == len(TALK) - 1
        removed = await second.forget("talk")
        assert removed.blocks >= 2
        assert await second.forget("talk") == Removed()
        once_more = await answered(model, TALK)
        assert once_more[0] == text
        assert once_more[1].cache.cached == 66  # of the request without a conversation
        assert (await answered(model, ELSE, "else"))[1].cache.cached == len(ELSE) - 1
        assert b"talk" not in contents(folders.kv)


async def test_without_an_engine_it_is_forgotten_in_the_folder(folders, tiny):
    async with service(folders) as first:
        model = await first.load(str(tiny))
        await answered(model, TALK, "talk")
        await answered(model, ELSE, "else")
    with kv_files.held(folders.kv):
        assert kv_files.forget(folders.kv, "talk").blocks == 2
    assert b"talk" not in contents(folders.kv)
    async with service(folders) as second:
        assert await second.forget("nobody") == Removed()  # no model is loaded
        model = await second.load(str(tiny))
        assert (await answered(model, TALK))[1].cache.cached == 0
        assert (await answered(model, ELSE))[1].cache.cached == len(ELSE) - 1


async def test_a_service_without_the_disk_asks_for_the_folder_first(folders, tiny):
    private_folder(folders.kv)
    async with contextlib.AsyncExitStack() as stack:
        with kv_files.held(folders.kv):
            second = await stack.enter_async_context(service(folders))
            model = await second.load(str(tiny))
            await answered(model, TALK, "talk")
            with pytest.raises(FolderInUseError, match="another process"):
                await second.forget("talk")
        await second.forget("talk")
        assert (await answered(model, TALK, "talk"))[1].cache.cached == 0


async def test_what_is_under_way_ends_as_if_nothing_had_been_cleared(folders, tiny):
    async with service(folders) as only:
        model = await only.load(str(tiny))
        whole, _ = await answered(model, TALK, use_cache=False)
        await answered(model, ELSE, "else")
        events = model.generate(ask(TALK, "talk"))
        seen = [await anext(events)]
        await only.clear(None, time.time())
        seen += [event async for event in events]
        assert "".join(event.text for event in seen if isinstance(event, Chunk)) == whole
        for prompt in (TALK, ELSE):
            assert (await answered(model, prompt, use_cache=True))[1].cache.cached == 0


async def test_only_the_model_that_is_meant_forgets(folders, tiny):
    async with service(folders) as only:
        model = await only.load(str(tiny))
        await answered(model, TALK)
        assert await only.clear(tiny.with_name("other.gguf"), time.time()) == Removed()
        assert (await answered(model, TALK))[1].cache.cached == len(TALK) - 1
        await only.clear(model.record.path, time.time())
        assert (await answered(model, TALK))[1].cache.cached == 0
