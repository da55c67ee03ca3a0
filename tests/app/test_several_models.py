"""Several models in one service, for real: tiny ones, on a machine that has room for one or two of them."""

import asyncio
import contextlib
import json

import httpx
import psutil
import pytest
from asking import end_of, text_of
from fake_service import NONCE
from tiny_models import write_tiny_bpe, write_tiny_llama

from pinyon.app import residents
from pinyon.app.api.app import make_app
from pinyon.app.api.door import Door
from pinyon.app.api.metrics import Metrics
from pinyon.app.ask import Ask, RawText, SamplingChoice
from pinyon.app.errors import NoRoomError, TooLargeError
from pinyon.app.fit import layout, sizes_here
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.kv_budget import LEAST_RAM_BYTES
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings
from pinyon.engine.client import EngineState
from pinyon.engine.kv_folder import size_bytes
from pinyon.models.machine.ram import Ram
from pinyon.models.memory.fit import Budget, Wish, fit
from pinyon.models.split_files import headers_of

pytestmark = pytest.mark.model

MIB = 1 << 20
SETTINGS = Settings(threads=1, cache_disk_mib=100, headroom_mib={"RAM": 0})
TALK = "This was said between two people, and to nobody else; they went on for a while. "


def need_bytes(path, context=None):
    """What one of these models is promised at least."""
    plan = fit(sizes_here(headers_of(path)), Budget(1 << 50), layout, Wish(context)).plan
    return plan.ram.total_bytes + LEAST_RAM_BYTES


@pytest.fixture
def other(tmp_path):
    return write_tiny_llama(tmp_path / "other.gguf", seed=1)


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path / "home")})


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many bytes, of which the services that are made have taken what they really take."""
    machine = _Machine()
    monkeypatch.setattr("pinyon.app.service.read_ram", machine.ram)
    monkeypatch.setattr("pinyon.app.kv_budget.read_ram", machine.ram)
    return machine


class _Machine:
    def __init__(self):
        self.bytes = 64 << 30
        self.services = []

    def ram(self):
        slots = [slot for service in self.services for slot in service._residents.everywhere]
        used = sum(slot.used_bytes() for slot in slots)
        return Ram(self.bytes, "", None, "", self.bytes - used, "")


@contextlib.asynccontextmanager
async def serving(folders, machine, settings=SETTINGS, **options):
    async with Service(folders, settings, several=True, **options) as service:
        machine.services.append(service)
        yield service


def ask(prompt=TALK, max_tokens=8):
    return Ask(RawText(prompt), SamplingChoice(temperature=0), max_tokens)


async def answered(model, asked=None):
    events = [event async for event in model.generate(asked or ask())]
    return text_of(events), end_of(events)


def names(service):
    return sorted(model.name for model in service.models)


async def test_what_fits_together_answers_together(folders, machine, tiny, other):
    async with serving(folders, machine) as service:
        first, second = await asyncio.gather(service.load(str(tiny)), service.load(str(other)))
        texts = await asyncio.gather(answered(first), answered(second), answered(first))
        assert texts[0][0] == texts[2][0] != texts[1][0]
        assert names(service) == ["other", "tiny"]
        assert all(model.compromises == () for model in service.models)


async def test_a_model_that_is_being_loaded_is_seen_before_it_is_there(folders, machine, tiny, other):
    async with serving(folders, machine) as service:
        await service.load(str(other))
        seen = []

        def on_progress(fraction):
            (slot,) = service.loading
            seen.append((slot.name, slot.loaded_share == fraction, service.engine_state, names(service)))

        await service.load(str(tiny), on_progress=on_progress)
        assert seen
        assert set(map(str, seen)) == {str(("tiny", True, EngineState.LOADING, ["other"]))}
        assert (service.loading, names(service)) == ((), ["other", "tiny"])


async def test_what_does_not_fit_together_takes_turns_and_finds_its_kv_again(folders, machine, tiny, other):
    async with serving(folders, machine) as service:
        machine.bytes = int(need_bytes(tiny) * 1.5)
        texts, cached = [], []
        for path in (tiny, other, tiny, other):
            async with service.using(str(path)) as model:
                text, end = await answered(model)
            assert names(service) == [path.stem]
            texts.append(text)
            cached.append(end.cache.cached)
        assert texts[:2] == texts[2:]
        assert cached[:2] == [0, 0]
        assert min(cached[2:]) >= 64, "at least one block came from the disk"


async def test_two_at_once_that_do_not_fit_together_both_answer(folders, machine, tiny, other, monkeypatch):
    monkeypatch.setattr(residents, "GUARD_S", 0.0)
    monkeypatch.setattr(residents, "GUARD_LOADS", 0)
    async with serving(folders, machine) as service:
        machine.bytes = int(need_bytes(tiny) * 1.5)

        async def one(path):
            async with service.using(str(path)) as model:
                return (await answered(model))[1].usage.completion_tokens

        assert await asyncio.gather(*(one(path) for path in (tiny, other, tiny, other))) == [8] * 4


async def test_who_waits_in_vain_is_told_the_numbers_and_nobody_is_interrupted(
    folders, machine, tiny, other, monkeypatch
):
    monkeypatch.setattr(residents, "SWAP_WAIT_S", 0.1)
    async with serving(folders, machine) as service, service.using(str(tiny)) as model:
        machine.bytes = int(need_bytes(tiny) * 1.5)
        with pytest.raises(NoRoomError, match=r"other needs \d+ MiB, .* is answering: tiny"):
            await service.load(str(other))
        assert (await answered(model))[1].usage.completion_tokens == 8


async def test_what_can_never_fit_starts_no_process(folders, machine, tiny):
    async with serving(folders, machine) as service:
        machine.bytes = need_bytes(tiny) // 2
        before = {child.pid for child in psutil.Process().children()}
        with pytest.raises(
            TooLargeError, match=r"tiny needs \d+ MiB, \d+ MiB are free for it: \d+ MiB more .* --force"
        ):
            await service.load(str(tiny))
        assert {child.pid for child in psutil.Process().children()} == before
        assert not folders.logs.exists()
        model = await service.load(str(tiny), is_forced=True)
        assert "more of RAM than is free" in model.compromises[-1]
        assert (await answered(model))[1].usage.completion_tokens == 8


async def test_a_context_that_does_not_fit_is_made_smaller_and_that_is_told(folders, machine, tmp_path):
    path = write_tiny_bpe(tmp_path / "long.gguf", "gpt-2", context=1 << 17)
    async with serving(folders, machine) as service:
        machine.bytes = need_bytes(path, 32_768) - MIB
        model = await service.load(str(path))
        assert 4096 <= model.context_tokens < 32_768
        (told,) = model.compromises
        assert told == f"a context of {model.context_tokens:,} tokens instead of the usual 32,768"
        assert (await model.meters()).cells == model.context_tokens
        assert model.fit.plan.ram.total_bytes + model.cache_bytes <= machine.bytes
        assert await service.load(str(path), 32_000) is model, "another load would not reach more"


async def test_the_cache_of_kv_takes_what_the_model_leaves_or_what_the_setting_says(folders, machine, tiny):
    async with serving(folders, machine) as service:
        machine.bytes = need_bytes(tiny) + 100 * MIB
        model = await service.load(str(tiny))
        assert LEAST_RAM_BYTES <= model.cache_bytes <= machine.bytes - model.fit.plan.ram.total_bytes
    asked = Settings(threads=1, cache_ram_mib=400, headroom_mib={"RAM": 0})
    async with serving(folders, machine, asked) as service:
        machine.bytes = need_bytes(tiny)
        with pytest.raises(TooLargeError, match=r" 0 MiB are free for it: .*; 400 MiB are set aside for computed"):
            await service.load(str(tiny))


async def test_one_alone_has_all_that_may_be_kept_and_gives_up_half_for_another_one(folders, machine, tiny, other):
    shared = Settings(threads=1, cache_ram_mib=400, cache_disk_mib=100, headroom_mib={"RAM": 0})
    async with serving(folders, machine, shared) as service:
        first = await service.load(str(tiny))
        await answered(first)

        def caps():
            slots = service._residents.here
            assert sum(slot.cache_bytes for slot in slots) <= 400 * MIB
            return {slot.name: (slot.cache_bytes // MIB, slot.config.kv_disk_cap_bytes // MIB) for slot in slots}

        assert caps() == {"tiny": (400, 100)}
        async with service.using(str(other), keep_alive=KeepAlive(0.0)) as second:
            assert caps() == {"tiny": (200, 50), "other": (200, 50)}
            assert (first.cache_bytes, second.cache_bytes) == (200 * MIB, 200 * MIB)
            assert (await answered(first))[1].cache.cached >= 64, "what it keeps is still there"
        async with asyncio.timeout(10):
            while caps() != {"tiny": (400, 100)}:
                await asyncio.sleep(0.01)
        assert first.cache_bytes == 400 * MIB
        assert (await answered(first))[1].cache.cached >= 64


async def test_what_cannot_be_given_up_is_not_granted_to_another_one(folders, machine, tiny, other, monkeypatch):
    def unused_bytes(_folder):
        raise OSError("the disk is gone")

    monkeypatch.setattr("pinyon.engine.kv_folder.unused_bytes", unused_bytes)
    shared = Settings(threads=1, cache_ram_mib=400, cache_disk_mib=100, headroom_mib={"RAM": 0})
    async with serving(folders, machine, shared) as service:
        await service.load(str(tiny))
        second = await service.load(str(other))
        granted = [(slot.cache_bytes, slot.config.kv_disk_cap_bytes) for slot in service._residents.here]
        assert granted == [(0, 0), (400 * MIB, 100 * MIB)]
        assert (await answered(second))[1].usage.completion_tokens == 8


async def test_what_may_be_kept_on_disk_is_never_exceeded_by_several(folders, machine, tiny, other):
    """Each prompt is another one, so each model fills what it may."""
    settings = Settings(threads=1, cache_ram_mib=1, cache_disk_mib=1, headroom_mib={"RAM": 0})
    async with serving(folders, machine, settings) as service:
        numbers = iter(range(1000))

        async def fill(model):
            for _ in range(40):
                prompt = f"{next(numbers)} {TALK}{TALK}"
                await answered(model, ask(prompt, 1))

        def kept_bytes():
            return sum(map(size_bytes, folders.kv.glob("*/")))

        first = await service.load(str(tiny))
        await fill(first)
        alone = kept_bytes()
        async with service.using(str(other), keep_alive=KeepAlive(0.0)) as second:
            assert MIB // 2 < alone <= MIB
            assert kept_bytes() <= MIB // 2
            await fill(second)
            assert kept_bytes() <= MIB
        await fill(first)
        assert kept_bytes() <= MIB


async def test_an_idle_model_leaves_and_a_pinned_one_stays(folders, machine, tiny, other):
    soon = Settings(threads=1, cache_disk_mib=100, keep_alive_s=0)
    async with serving(folders, machine, soon, pinned=tiny) as service:
        await answered(await service.load(str(tiny)))
        async with service.using(str(other)) as model:
            await answered(model)
        assert names(service) == ["tiny"]
        async with service.using(str(tiny), keep_alive=KeepAlive(0.0)) as model:
            await answered(model)
        assert names(service) == ["tiny"]
        async with service.using(str(other), keep_alive=KeepAlive(None)) as model:
            await answered(model)
        assert names(service) == ["other", "tiny"]


async def test_a_long_answer_outlasts_its_model_s_time(folders, machine, tiny):
    async with serving(folders, machine) as service:
        async with service.using(str(tiny), keep_alive=KeepAlive(0.0)) as model:
            stream = model.generate(ask(max_tokens=100))
            await anext(stream)
        assert service.models == (model,)
        *_, end = [event async for event in stream]
        assert end.usage.completion_tokens == 100
        assert service.models == ()
        async with asyncio.timeout(10):
            while model.state is not EngineState.STOPPED:
                await asyncio.sleep(0.01)


# Through HTTP


@contextlib.asynccontextmanager
async def api(folders, machine, *paths):
    async with serving(folders, machine) as service:
        for path in paths:
            service.store.add(path, path.stem)
        metrics = Metrics()
        door = Door(service, None, SETTINGS, metrics)
        transport = httpx.ASGITransport(make_app(door, metrics.registry, NONCE, with_docs=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def body(model, **fields):
    return {"model": model, "prompt": TALK, "max_tokens": 4, "temperature": 0, **fields}


async def test_requests_name_their_models_and_all_are_shown(folders, machine, tiny, other):
    async with api(folders, machine, tiny, other) as client:
        for name in ("tiny", "other", "tiny"):
            answer = (await client.post("/v1/completions", json=body(name))).json()
            assert (answer["model"], answer["usage"]["completion_tokens"]) == (name, 4)
        unnamed = (await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).json()
        assert unnamed["model"] == "tiny", "the one that was used last"
        health = (await client.get("/health")).json()
        assert [model["model"] for model in health["models"]] == ["tiny", "other"]
        shown = {entry["id"]: entry for entry in (await client.get("/v1/models")).json()["data"]}
        assert all(shown[name]["loaded"] and shown[name]["memory"]["ram_bytes"] > 0 for name in ("tiny", "other"))
        lines = (await client.get("/metrics")).text
        assert all(f'pinyon_context_cells{{model="{name}"}} 256.0' in lines for name in ("tiny", "other"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_says_how_long_its_model_stays(folders, machine, tiny, stream):
    async with api(folders, machine, tiny) as client:
        answer = await client.post("/v1/completions", json=body("tiny", keep_alive=0, stream=stream))
        assert answer.status_code == 200
        assert (await client.get("/health")).json()["models"] == []
        await client.post("/v1/completions", json=body("tiny", keep_alive="5m", stream=stream))
        assert len((await client.get("/health")).json()["models"]) == 1


async def test_two_that_do_not_fit_together_wait_or_are_refused_with_the_numbers(
    folders, machine, tiny, other, monkeypatch
):
    monkeypatch.setattr(residents, "SWAP_WAIT_S", 0.2)
    async with api(folders, machine, tiny, other) as client:
        machine.bytes = int(need_bytes(tiny) * 1.5)
        service = machine.services[-1]
        async with service.using("tiny"):
            refused = await client.post("/v1/completions", json=body("other"))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (503, "overloaded", "model")
        assert int(refused.headers["retry-after"]) == error["retry_after_s"] >= 1
        assert "MiB" in error["message"]
        monkeypatch.setattr(residents, "SWAP_WAIT_S", 30.0)
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body(name)) for name in ["tiny", "other"] * 2)
        )
        assert [json.loads(answer.content)["model"] for answer in answers] == ["tiny", "other"] * 2
        machine.bytes = need_bytes(tiny) // 2
        await asyncio.sleep(0)
        for name in [*service.models]:
            async with service.using(name.name, keep_alive=KeepAlive(0.0)):
                pass
        impossible = await client.post("/v1/completions", json=body("other"))
        assert (impossible.status_code, impossible.json()["error"]["code"]) == (500, "does_not_fit")
        assert "MiB" in impossible.json()["error"]["message"]
