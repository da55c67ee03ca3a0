"""Several at once want more than there is: who is refused and how, and what the others get."""

import asyncio

import httpx
import pytest
from fake_service import says
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Api, Visitor, chat_body, listening, settle, text_body
from real_server import real_server
from sse_stream import strict_json

from pinyon.app.api.guard import Caller
from pinyon.engine.config import Limits
from pinyon.engine.errors import EngineStuckError
from pinyon.engine.request import Priority

# Who is who


def test_a_client_is_who_has_a_token_else_who_says_so_else_a_connection():
    first, second = Caller("", "127.0.0.1:1"), Caller("", "127.0.0.1:2")
    assert len({first.client(None), second.client(None), first.client("ann"), first.client("127.0.0.1:1")}) == 4
    assert first.client("ann") == second.client("ann") != first.client("bob")
    assert Caller("token", "127.0.0.1:1").client("ann") == Caller("token", "127.0.0.1:2").client(None) == "token"
    assert Caller("", "").client("\ud800")


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, text_body())])
async def test_what_is_asked_of_the_scheduler_reaches_it(api, path, body):
    await api.whole(path, body)
    await api.whole(path, {**body, "priority": "batch", "ttft_deadline_s": 1.5, "user": "ann"})
    await api.whole(path, {**body, "user": "ann"})
    plain, batch, named = api.server.model.asked
    assert (plain.priority, plain.ttft_deadline_s) == (Priority.INTERACTIVE, None)
    assert (batch.priority, batch.ttft_deadline_s) == (Priority.BATCH, 1.5)
    assert batch.client == named.client != plain.client


# Who is refused


async def test_whoever_has_too_much_waiting_is_told_so_and_others_are_not(make_api):
    api = make_api(says("ab"), sequence_ids=1, limits=Limits(client_queue=1))
    api.server.model.unpaused.clear()
    taken = [Visitor(api.server.app, CHAT, chat_body(user=user)) for user in ("ann", "ann", "bob")]
    await settle()
    for stream in (False, True):
        response = await api.post(CHAT, chat_body(user="ann", stream=stream))
        error = strict_json(response.text)["error"]
        assert (response.status_code, error["code"], error["type"]) == (429, "client_limit", "invalid_request_error")
        assert int(response.headers["retry-after"]) == error["retry_after_s"] >= 1
    api.server.model.unpaused.set()
    for visitor in taken:
        await visitor.ended()
        assert strict_json(visitor.body.decode())["choices"][0]["message"]["content"] == "ab"


async def test_who_cannot_be_answered_in_time_is_told_at_once(make_api):
    api = make_api(hashed)
    await api.whole(CHAT, chat_body(max_tokens=20))
    for stream in (False, True):
        response = await api.post(CHAT, chat_body(ttft_deadline_s=1e-6, stream=stream))
        error = strict_json(response.text)["error"]
        assert (response.status_code, error["code"]) == (503, "overloaded")
        assert int(response.headers["retry-after"]) == error["retry_after_s"] >= 1
    assert (await api.post(CHAT, chat_body(ttft_deadline_s=100, max_tokens=2))).status_code == 200


async def test_whose_engine_stood_still_gets_a_timeout(make_api):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = Visitor(api.server.app, CHAT, chat_body())
    await settle()
    api.server.model.die(EngineStuckError)
    await visitor.ended()
    error = strict_json(visitor.body.decode())["error"]
    assert (visitor.status, error["code"], error["type"]) == (504, "engine_stuck", "server_error")


# What the others get


@pytest.fixture
async def crowded(tiny, tmp_path):
    """A server with 256 cells."""
    async with real_server(tiny, tmp_path / "home", 256) as server:
        api = Api(server)
        yield api
        await api.client.aclose()


@pytest.mark.parametrize(
    ("requests", "prompt_tokens", "answer_tokens"),
    [(4, 70, 100), (10, 20, 80)],
    ids=["each of them is long", "none of them is"],
)
async def test_all_are_answered_whole_though_they_need_several_times_the_cells_there_are(
    crowded, requests, prompt_tokens, answer_tokens
):
    """R12. That they are answered as alone is seen in KV and logits (tests/engine/test_preemption): text moves with a batch's shape."""
    bodies = [
        {"prompt": chr(97 + number) * prompt_tokens, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True}
        for number in range(requests)
    ]
    for _ in range(40):  # answers are expected to be short
        await crowded.whole(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "temperature": 0, "ignore_eos": True})
    answers = await asyncio.gather(*(crowded.streamed(COMPLETIONS, body) for body in bodies))
    assert {answer.usage["completion_tokens"] for answer in answers} == {answer_tokens}
    assert {answer.choices[0].finish_reason for answer in answers} == {"length"}
    preempted = (await crowded.server.service.meters()).service.preempted
    assert (preempted > 0) == (prompt_tokens < 256 / 4), "long ones come one at a time"


@pytest.mark.model
async def test_who_reads_gets_tokens_all_the_time_while_a_long_prompt_is_computed(smollm2, tmp_path):
    """R13: in a call for the whole prompt there would be none."""
    async with (
        real_server(smollm2, tmp_path / "home", 4096) as server,
        listening(server.app) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        came = asyncio.Event()
        texts = 0

        async def read():
            nonlocal texts
            body = {"prompt": "A story:", "max_tokens": 1000, "ignore_eos": True, "stream": True}
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        texts += bool(strict_json(line[6:])["choices"][0]["text"])
                        came.set()

        reader = asyncio.create_task(read())
        await came.wait()
        before = texts
        answer = await client.post(COMPLETIONS, json={"prompt": "clock " * 800, "max_tokens": 1})
        meanwhile = texts - before
        reader.cancel()
        assert answer.json()["usage"]["prompt_tokens"] >= 800
        assert meanwhile >= 5, "a step had more than 160 rows of the prompt"
