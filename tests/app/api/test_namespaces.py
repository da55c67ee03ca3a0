"""What one token's requests computed serves that token alone, on every route that generates."""

import asyncio
import json

import httpx
import pytest
from fake_service import FakeModel, FakeServer, says
from http_asking import CHAT, COMPLETIONS

from pinyon.app.api.guard import Guard, GuardRules

TOKENS = ("the-token-of-alice", "the-token-of-bob")
TEXT = "A long story that is told once, and then once more to somebody else. " * 3
BODIES = {CHAT: {"messages": [{"role": "user", "content": TEXT}]}, COMPLETIONS: {"prompt": [TEXT, f"{TEXT}?"]}}


@pytest.fixture
async def server():
    made = FakeServer(FakeModel(says("Hello.")))
    yield made
    await made.model.close()


def client(server, tokens):
    app = Guard(server.app, GuardRules.for_bind("127.0.0.1", tokens=tokens))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def cached(client, route, token, **fields):
    """Return the cached tokens of an answer, and what it says about the cache."""
    headers = {"authorization": f"Bearer {token}"}
    answer = await client.post(route, content=json.dumps({**BODIES[route], **fields}), headers=headers)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        (extras,) = [event["pinyon"] for event in map(json.loads, events) if "pinyon" in event]
    else:
        extras = answer.json()["pinyon"]
    return extras["cache"]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_token_finds_what_it_had_computed_and_nothing_of_others(server, route, stream):
    alice, bob = TOKENS
    async with client(server, TOKENS) as http:
        first = await cached(http, route, alice, stream=stream)
        assert (first["resident"], first["miss"]) == (0, "new")
        assert await cached(http, route, bob, stream=stream) == first
        assert (await cached(http, route, alice))["resident"] > 200
        assert (await cached(http, route, bob))["resident"] > 200


async def test_a_prompt_that_is_being_computed_is_not_waited_for_by_others(server):
    async with client(server, TOKENS) as http:
        both = await asyncio.gather(*(cached(http, CHAT, token) for token in TOKENS))
    assert [(each["resident"], each["miss"]) for each in both] == [(0, "new")] * 2


async def test_without_tokens_keys_do_not_split_what_is_kept(server):
    async with client(server, ()) as http:
        await cached(http, CHAT, "sk-none")
        assert (await cached(http, CHAT, "another dummy"))["resident"] > 200


async def test_a_client_cannot_choose_a_namespace_or_a_conversation(server):
    body = {**BODIES[CHAT], "namespace": "x", "conversation": "y"}
    async with client(server, ()) as http:
        answer = await http.post(CHAT, content=json.dumps(body))
    assert answer.json()["pinyon"]["ignored"] == ["conversation", "namespace"]
    assert (server.model.asked[-1].namespace, server.model.asked[-1].conversation) == ("", None)
