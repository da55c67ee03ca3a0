"""The official SDK, sync and async, against a server on a real socket."""

import asyncio
from typing import Literal

import openai
import pytest
from fake_service import THINK, FakeModel, FakeServer, raises, says
from fakes import END_OF_TURN, hashed, hashed_logits
from http_asking import HI, listening
from pydantic import BaseModel, Field

from pinyon.app.limits import RETRY_AFTER_S
from pinyon.engine.constraint import Constraint
from pinyon.engine.errors import NativeError

CHAT = {"model": "fake", "messages": HI}
TEXT = {"model": "fake", "prompt": "Hi"}


class Sdk:
    def __init__(self, server, url):
        self.server = server
        self.options = {"base_url": f"{url}/v1", "api_key": "unused", "max_retries": 0, "timeout": 20}
        self.client = openai.AsyncOpenAI(**self.options)

    @property
    def chat(self):
        return self.client.chat.completions

    async def in_thread(self, work):
        """Run blocking work with a sync client."""

        def run():
            with openai.OpenAI(**self.options) as client:
                return work(client)

        return await asyncio.to_thread(run)


def uncached(usage):
    """The same usage whether or not the prompt had been seen before."""
    return usage.model_copy(update={"prompt_tokens_details": None})


@pytest.fixture
async def make_sdk():
    exits = []

    async def make(next_token=None, **options):
        server = FakeServer(FakeModel(next_token or says("Hello, you."), **options))
        serving = listening(server.app)
        sdk = Sdk(server, await serving.__aenter__())
        exits.extend([server.model.close, lambda: serving.__aexit__(None, None, None), sdk.client.close])
        return sdk

    yield make
    for leave in reversed(exits):
        await leave()


@pytest.fixture
async def sdk(make_sdk):
    return await make_sdk()


def joined(chunks, n=1):
    """What the deltas of a stream add up to, choice by choice."""
    choices = [{"content": "", "reasoning": "", "tokens": [], "finish": None} for _ in range(n)]
    for chunk in chunks:
        for part in chunk.choices:
            choice = choices[part.index]
            choice["content"] += part.delta.content or ""
            choice["reasoning"] += getattr(part.delta, "reasoning_content", None) or ""
            choice["tokens"] += part.logprobs.content if part.logprobs else []
            choice["finish"] = part.finish_reason or choice["finish"]
    return choices


def taken_apart(completion):
    return [
        {
            "content": choice.message.content,
            "reasoning": getattr(choice.message, "reasoning_content", ""),
            "tokens": choice.logprobs.content if choice.logprobs else [],
            "finish": choice.finish_reason,
        }
        for choice in completion.choices
    ]


@pytest.mark.parametrize(
    ("next_token", "options", "fields"),
    [
        pytest.param(says("alpha 🫠 beta gamma delta"), {}, {}, id="plain"),
        pytest.param(says("alpha beta gamma delta"), {}, {"stop": "beta gamma"}, id="a stop string of several tokens"),
        pytest.param(says("alpha beta gamma delta"), {}, {"stop": ["ta ga", "beta gamma"]}, id="several stop strings"),
        pytest.param(says("alpha"), {}, {"max_tokens": 3}, id="a limit"),
        pytest.param(says("aé"), {}, {"logprobs": True, "top_logprobs": 2}, id="logprobs"),
        pytest.param(says("<think>hm</think>\n\nyes"), {"reasoning": THINK}, {"logprobs": True}, id="thoughts"),
        pytest.param(
            hashed_logits, {}, {"n": 4, "temperature": 1, "seed": 3, "max_completion_tokens": 30}, id="choices"
        ),
        pytest.param(hashed_logits, {}, {"logit_bias": {"97": 100}, "max_tokens": 3}, id="a bias"),
    ],
)
async def test_a_stream_is_the_answer_in_parts(make_sdk, next_token, options, fields):
    sdk = await make_sdk(next_token, **options)
    whole = await sdk.chat.create(**CHAT, **fields)
    stream = await sdk.chat.create(**CHAT, **fields, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert joined(chunks, fields.get("n", 1)) == taken_apart(whole)
    assert uncached(chunks[-1].usage) == uncached(whole.usage)
    assert chunks[-1].choices == []
    assert [chunk for chunk in chunks if chunk.usage] == chunks[-1:]
    in_thread = await sdk.in_thread(
        lambda client: (
            client.chat.completions.create(**CHAT, **fields),
            list(client.chat.completions.create(**CHAT, **fields, stream=True)),
        )
    )
    assert taken_apart(in_thread[0]) == taken_apart(whole)
    assert joined(in_thread[1], fields.get("n", 1)) == taken_apart(whole)


async def test_the_sdk_s_own_accumulator_agrees(sdk):
    whole = await sdk.chat.create(**CHAT)
    async with sdk.chat.stream(**CHAT) as stream:
        final = await stream.get_final_completion()
    assert taken_apart(final) == taken_apart(whole)


async def test_completions_stream_as_they_answer(make_sdk):
    sdk = await make_sdk(hashed_logits)
    fields = {"prompt": ["one", "two"], "n": 2, "temperature": 1, "seed": 5, "max_tokens": 20, "logprobs": 2}
    whole = await sdk.client.completions.create(model="fake", **fields)
    texts, tokens = [""] * 4, [[] for _ in range(4)]
    options = {"include_usage": True}
    async for chunk in await sdk.client.completions.create(model="fake", **fields, stream=True, stream_options=options):
        for part in chunk.choices:
            texts[part.index] += part.text
            tokens[part.index] += part.logprobs.tokens if part.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert uncached(chunk.usage) == uncached(whole.usage)
    echoed = await sdk.client.completions.create(**TEXT, echo=True, max_tokens=1)
    assert echoed.choices[0].text.startswith("Hi")
    assert (await sdk.client.completions.create(model="fake", prompt=[72, 105], max_tokens=1)).usage.prompt_tokens == 2


async def test_a_seed_repeats_an_answer(make_sdk):
    sdk = await make_sdk(hashed_logits)

    async def text(**fields):
        answer = await sdk.chat.create(**CHAT, temperature=1, max_tokens=30, **fields)
        return answer.choices[0].message.content, answer.pinyon["seed"]

    first, drawn = await text()
    assert await text(seed=drawn) == (first, drawn)
    assert (await text(seed=1))[0] == (await text(seed=1))[0] != (await text(seed=2))[0]


async def test_models_are_listed_and_retrieved(sdk):
    listed = [model async for model in sdk.client.models.list()]
    assert [model.id for model in listed] == ["fake"]
    assert listed[0].context_length == 4096
    assert await sdk.client.models.retrieve("fake") == listed[0]
    assert await sdk.in_thread(lambda client: client.models.retrieve("fake")) == listed[0]


async def test_raw_responses_can_be_read(sdk):
    raw = await sdk.chat.with_raw_response.create(**CHAT)
    assert (raw.status_code, raw.headers["content-type"]) == (200, "application/json")
    assert (raw.headers["cache-control"], raw.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert (await maybe(raw.parse())).choices[0].message.content == "Hello, you."


async def maybe(value):
    return await value if asyncio.iscoroutine(value) else value


# Errors.


@pytest.mark.parametrize(
    ("fields", "kind", "status", "code", "param"),
    [
        ({"n": 0}, openai.BadRequestError, 400, "invalid_value", "n"),
        ({"temperature": "hot"}, openai.BadRequestError, 400, "invalid_value", "temperature"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, 400, "invalid_value", "tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
         openai.BadRequestError, 400, "invalid_value", "response_format.json_schema.schema"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, openai.BadRequestError, 400, "context_length_exceeded", None),
        ({"model": "nobody"}, openai.NotFoundError, 404, "model_not_found", "model"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_sdk_s_exceptions(sdk, fields, kind, status, code, param, stream):
    with pytest.raises(kind) as raised:
        await sdk.chat.create(**{**CHAT, **fields}, stream=stream)
    assert (raised.value.status_code, raised.value.code, raised.value.param) == (status, code, param)
    with pytest.raises(kind):
        await sdk.in_thread(lambda client: client.chat.completions.create(**{**CHAT, **fields}, stream=stream))


async def test_the_numbers_of_an_overflow_are_in_the_error(sdk):
    with pytest.raises(openai.BadRequestError) as raised:
        await sdk.client.completions.create(model="fake", prompt="x" * 4096)
    assert (raised.value.body["prompt_tokens"], raised.value.body["context_tokens"]) == (4096, 4096)
    assert "4,096 tokens" in raised.value.message


async def test_a_failure_in_a_stream_is_raised_by_the_sdk(make_sdk):
    sdk = await make_sdk(raises(5, NativeError("x")))
    stream = await sdk.chat.create(**CHAT, stream=True)
    seen = [await anext(stream) for _ in range(6)]
    with pytest.raises(openai.APIError) as raised:
        await anext(stream)
    assert raised.value.code == "engine_error"
    assert joined(seen) == [{"content": "aaaaa", "reasoning": "", "tokens": [], "finish": None}]
    with pytest.raises(openai.InternalServerError) as raised:
        await sdk.chat.create(**CHAT)
    assert raised.value.code == "engine_error"


async def test_a_server_that_ends_says_when_to_come_back(sdk):
    await sdk.server.door.drain(0)
    with pytest.raises(openai.InternalServerError) as raised:
        await sdk.chat.create(**CHAT)
    assert (raised.value.status_code, raised.value.code) == (503, "shutting_down")
    assert raised.value.response.headers["retry-after"] == str(RETRY_AFTER_S)


async def test_where_nobody_listens_the_connection_fails():
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(**CHAT)


# Clients that leave.


@pytest.mark.parametrize("route", ["chat", "completions"])
async def test_closing_a_stream_ends_its_answer(make_sdk, route):
    sdk = await make_sdk(hashed, cells=1 << 16)
    create = (
        sdk.chat.create(**CHAT, stream=True) if route == "chat" else sdk.client.completions.create(**TEXT, stream=True)
    )
    stream = await create
    async for _ in stream:
        break
    await stream.close()
    await sdk.server.becomes_idle()


async def test_a_client_that_gives_up_waiting_ends_its_answer(make_sdk):
    sdk = await make_sdk(hashed)
    sdk.server.model.unpaused.clear()
    with pytest.raises(openai.APITimeoutError):
        await sdk.client.with_options(timeout=0.1).chat.completions.create(**CHAT)
    await sdk.server.becomes_idle()


async def test_headers_and_the_first_events_come_before_the_first_token(make_sdk):
    sdk = await make_sdk(hashed)
    sdk.server.model.unpaused.clear()
    stream = await asyncio.wait_for(sdk.chat.create(**CHAT, stream=True), 5)
    first = await asyncio.wait_for(anext(stream), 5)
    assert first.choices[0].delta.role == "assistant"
    sdk.server.model.step()
    assert (await asyncio.wait_for(anext(stream), 5)).choices[0].delta.content
    await stream.close()
    await sdk.server.becomes_idle()


# Structured answers.


class Verdict(BaseModel):
    answer: Literal["yes", "no"]
    score: int = Field(ge=0, le=9)


class BytesOf:
    """A vocabulary of single bytes for real grammars."""

    size = 260

    def llguidance_tokenizer(self, _eog):
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=self.size)


class _Bytes:
    eos_token_id = END_OF_TURN
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), *(b"\xff[%d]" % i for i in range(256, 260)))
    special_token_ids = (256, 257, END_OF_TURN, 259)

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


async def test_a_pydantic_model_is_parsed(make_sdk):
    from pinyon.engine.constraint import GrammarCompiler

    sdk = await make_sdk(hashed_logits)
    compiler = GrammarCompiler(BytesOf(), [END_OF_TURN])
    sdk.server.model.engine._compile_grammar = compiler.compile
    completion = await sdk.chat.parse(**CHAT, response_format=Verdict)
    choice = completion.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.parsed == Verdict.model_validate_json(choice.message.content)
    assert isinstance(compiler.compile(sdk.server.model.asked[0].grammar), Constraint)
    async with sdk.chat.stream(**CHAT, response_format=Verdict) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == choice.message.parsed
