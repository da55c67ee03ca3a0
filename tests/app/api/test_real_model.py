"""The HTTP door over real engines: one pass of each promise on a tiny model, structured answers on SmolLM2."""

import asyncio
import contextlib
import json
import os
import signal

import httpx
import jsonschema
import pytest
from http_asking import CHAT, COMPLETIONS, HI, Api, chat_body, listening, text_body
from real_server import real_server
from sse_stream import check_chunks, read_stream
from tiny_models import CHATML, CONTEXT, FIRST_BYTE, write_tiny_llama

pytestmark = pytest.mark.model

ODD = "Hé\0 \u202e👩‍👩‍👧 e\u0301<|im_end|>\n<|im_start|>system\n"
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
)
ANY_ROLE_RAISES = "{{ raise_exception('only questions, please') }}"


@pytest.fixture
async def serve(tmp_path):
    async with contextlib.AsyncExitStack() as stack:

        async def start(path, context=None):
            server = await stack.enter_async_context(real_server(path, tmp_path / "home", context))
            api = Api(server)
            stack.push_async_callback(api.client.aclose)
            return api

        yield start


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1, "seed": 1},
        {"logprobs": True, "top_logprobs": 4},
        {"stop": ["a", "e", "\n"], "temperature": 1, "seed": 2},
        {
            "presence_penalty": 1.5,
            "frequency_penalty": -0.5,
            "repeat_penalty": 1.3,
            "typical_p": 0.9,
            "top_k": 50,
            "seed": 3,
        },
        {"logit_bias": {"72": 100}},
    ],
)
async def test_a_stream_is_the_answer_in_parts(serve, tiny, fields):
    api = await serve(tiny)
    # A prompt that is computed in part changes the last digits, and so do drafts.
    fields = {"temperature": 0, "cache": "off", "speculate": "off", **fields}
    answer = await api.both(CHAT, chat_body(**{"max_tokens": 24, **fields}))
    assert len(answer.choices) == fields.get("n", 1)
    assert answer.usage["completion_tokens"] <= 24 * len(answer.choices)
    several = {"prompt": ["One", "Two, three"], **fields}
    alone = {
        "prompt": "One",
        "logprobs": 4,
        "temperature": 0,
        "cache": "off",
        "speculate": "off",
    }  # how prompts share batches changes the last digits
    await api.both(COMPLETIONS, {"max_tokens": 24, **(alone if "logprobs" in fields else several)})


async def test_prompts_come_back_as_they_were_sent(serve, tiny):
    api = await serve(tiny)
    echoed = await api.both(COMPLETIONS, text_body(prompt=ODD, echo=True, max_tokens=1, logit_bias={"72": 100}))
    assert echoed.choices[0].text == f"{ODD}A"
    tokens = (await api.post("/v1/tokenize", {"prompt": ODD})).json()
    assert tokens["count"] == echoed.usage["prompt_tokens"]
    assert (await api.post("/v1/detokenize", {"tokens": tokens["tokens"]})).json()["prompt"] == ODD
    chat_tokens = (await api.post("/v1/tokenize", {"messages": HI})).json()["count"]
    assert (await api.whole(CHAT, chat_body(max_tokens=1))).usage["prompt_tokens"] == chat_tokens
    (listed,) = (await api.get("/v1/models")).json()["data"]
    assert (listed["id"], listed["context_length"], listed["loaded"]) == ("tiny", CONTEXT, True)


async def test_a_text_that_comes_back_as_other_tokens_is_told(serve, tiny):
    """The model is made to answer with spaces as bytes, for which the tokenizer has a token of their own."""
    api = await serve(tiny)
    asked = text_body(max_tokens=4, logit_bias={str(FIRST_BYTE + 0x20): 100})
    first = (await api.whole(COMPLETIONS, asked)).choices[0].text
    again = await api.post(COMPLETIONS, text_body(prompt=f"{asked['prompt']}{first}more", max_tokens=1))
    cache = again.json()["pinyon"]["cache"]
    assert first == " " * 4
    assert (cache["resident"], cache["miss"], cache["position"]) == (2, "retokenised", 2)
    assert "other tokens" in cache["advice"]


@pytest.mark.parametrize(
    ("template", "sent", "miss", "advice"),
    [
        (CHATML, "AAAA", "new", ""),
        (CHATML, "ABCD", "history_changed", "the chat template or the client"),
        (CHATML.replace("assistant\n", "assistant\n<think>\n"), "ABCD", "history_changed", "thoughts are not in"),
    ],
    ids=["as it was", "changed", "without thoughts"],
)
async def test_an_answer_that_comes_back_changed_is_told(serve, tmp_path, template, sent, miss, advice):
    api = await serve(write_tiny_llama(tmp_path / "m.gguf", template=template))
    await api.post(CHAT, chat_body(max_tokens=4, logit_bias={"72": 100}))
    history = [*HI, {"role": "assistant", "content": sent}, {"role": "user", "content": "Well"}]
    cache = (await api.post(CHAT, chat_body(messages=history, max_tokens=1))).json()["pinyon"]["cache"]
    assert cache["resident"] > 0
    assert cache["miss"] == miss
    assert advice in cache["advice"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_needs_room_for_one_token_of_the_answer(serve, tiny, stream):
    api = await serve(tiny)
    overhead = (await api.post("/v1/tokenize", {"messages": [{"role": "user", "content": ""}]})).json()["count"]
    for path, around in ((CHAT, overhead), (COMPLETIONS, 0)):
        for tokens in (CONTEXT - 1, CONTEXT, CONTEXT + 1, 200_000):
            text = "x" * (tokens - around)
            body = chat_body(messages=[{"role": "user", "content": text}]) if path == CHAT else text_body(prompt=text)
            if tokens < CONTEXT:
                assert (await api.both(path, body)).usage["prompt_tokens"] == tokens
                continue
            error = await api.refused(path, {**body, "stream": stream})
            assert (error["code"], error["context_tokens"]) == ("context_length_exceeded", CONTEXT)
            assert f"{error['prompt_tokens']:,} tokens, the context holds {CONTEXT}" in error["message"]
            assert tokens // 20 <= error["prompt_tokens"] <= tokens
    assert await api.server.pid()


@pytest.mark.parametrize("roles", [["system", "user"], ["user", "user"], ["system", "system", "user"]])
async def test_what_a_template_refuses_is_folded_where_that_is_possible(serve, tmp_path, roles):
    api = await serve(write_tiny_llama(tmp_path / "m.gguf", template=REFUSES_SYSTEM))
    messages = [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]
    folded = "\n\n".join(message["content"] for message in messages)
    counts = [
        (await api.post("/v1/tokenize", {"messages": sent})).json()["count"]
        for sent in (messages, [{"role": "user", "content": folded}])
    ]
    assert counts[0] == counts[1]
    assert (await api.both(CHAT, chat_body(messages=messages, max_tokens=2))).usage["prompt_tokens"] == counts[0]


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (REFUSES_SYSTEM, [{"role": "assistant", "content": "first"}], "roles must alternate"),
        (ANY_ROLE_RAISES, HI, "only questions, please"),
        (None, HI, "no chat template"),
        ("{{ messages[0].content.nothing.more }}", HI, ""),
        ("{% for i in range(10**9) %}{% endfor %}", HI, "range"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_template_s_refusal_is_told_in_its_own_words(serve, tmp_path, template, messages, words, stream):
    path = write_tiny_llama(tmp_path / "m.gguf", template=template)
    api = await serve(path)
    error = await api.refused(CHAT, chat_body(messages=messages, stream=stream))
    assert error["param"] == "messages"
    assert words in error["message"]
    assert str(tmp_path) not in error["message"]
    assert (await api.whole(COMPLETIONS, text_body(max_tokens=1))).choices


async def test_a_template_that_takes_too_long_is_refused(serve, tmp_path):
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    api = await serve(write_tiny_llama(tmp_path / "m.gguf", template=loops))
    error = await api.refused(CHAT, chat_body(), 422)
    assert (error["code"], error["param"]) == ("template_too_expensive", "messages")
    assert (await api.whole(COMPLETIONS, text_body(max_tokens=1))).choices


async def test_messages_of_a_hundred_marks_and_nul_are_answered(serve, tiny):
    api = await serve(tiny)
    for text in (ODD, "e" + "\u0301" * 100, "\0" * 50, "\ufffe\U0010ffff"):
        answer = await api.both(CHAT, chat_body(messages=[{"role": "user", "content": text}], max_tokens=4))
        assert answer.usage["completion_tokens"] <= 4


async def test_the_death_of_the_worker_ends_streams_and_the_next_request_works(serve, tmp_path):
    roomy = write_tiny_llama(tmp_path / "roomy.gguf", metadata={"llama.context_length": 16_384})
    api = await serve(roomy, context=16_384)
    endless = {"logit_bias": {"72": 100}, "max_tokens": 5000, "stream": True}
    async with listening(api.server.app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        await api.whole(CHAT, chat_body(max_tokens=1))  # what renders chats has started: none of the two waits for it
        pid = await api.server.pid()
        bodies = [json.dumps({**body, **endless}) for body in (chat_body(), text_body(prompt=["a", "b"]))]
        both_stream = asyncio.Barrier(2)
        raw = await asyncio.gather(
            killed_in_mid_stream(client, CHAT, bodies[0], pid, both_stream),
            killed_in_mid_stream(client, COMPLETIONS, bodies[1], pid, both_stream),
        )
        for body in raw:
            stream = read_stream(body)
            check_chunks(stream)
            assert (stream.error["code"], stream.done) == ("engine_crash", False)
            assert len(stream.chunks) > 1
        answer = await client.post(CHAT, content=json.dumps(chat_body(max_tokens=2)))
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 2)
        assert await api.server.pid() != pid
    assert api.server.door.running + api.server.door.waiting == 0


async def killed_in_mid_stream(client, path, body, pid, both_stream):
    raw = b""
    async with client.stream("POST", path, content=body) as response:
        pieces = response.aiter_raw()
        while raw.count(b"data:") < 5:
            raw += await anext(pieces)
        await both_stream.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        async for piece in pieces:
            raw += piece
    return raw


# Structured answers of a real vocabulary.

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", 'quote " and\nline', "é🫠"]}, "minItems": 1, "maxItems": 2},
        'a"b': {"type": "boolean"},
    },
    "required": ["name", "age", "tags", 'a"b'],
    "additionalProperties": False,
}
AWKWARD = 'alpha "beta" \\ 🫠 你好 👩‍👩‍👧 é\ttab </script> <|im_end|>'


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


@pytest.fixture
async def smol(serve, smollm2):
    return await serve(smollm2, 1024)


async def test_answers_are_valid_under_their_schema(smol):
    fields = {"n": 2, "temperature": 1, "seed": 1, "max_tokens": 200, "deterministic": True}
    body = chat_body(response_format=schema_format(PERSON), **fields)
    answer = await smol.both(CHAT, body)
    assert len({choice.text for choice in answer.choices}) == 2
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.text), PERSON)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "x"}, PERSON)


FORCED = [
    ({"response_format": schema_format({"const": AWKWARD})}, json.dumps(AWKWARD, ensure_ascii=False)),
    ({"regex": "ok 🫠 你好 👩‍👩‍👧 é"}, "ok 🫠 你好 👩‍👩‍👧 é"),
    ({"grammar": 'start: "alpha beta gamma delta"'}, "alpha beta gamma delta"),
    ({"grammar": 'root ::= "alpha " ("beta")'}, "alpha beta"),
    ({"grammar": 'start: "alpha beta gamma delta"', "stop": "beta gamma"}, "alpha "),
    ({"grammar": 'start: "alpha beta gamma delta"', "stop": ["ta ga", "beta gamma"]}, "alpha be"),
    ({"regex": "<think>hm</think> yes"}, "<think>hm</think> yes"),
]


async def test_a_forced_text_comes_out_byte_for_byte(smol):
    for fields, expected in FORCED:
        choice = (await smol.both(CHAT, chat_body(**fields, logprobs=True, deterministic=True))).choices[0]
        assert (choice.text, choice.finish_reason) == (expected, "stop")
        if "response_format" not in fields:
            choice = (await smol.both(COMPLETIONS, text_body(**fields, logprobs=1, deterministic=True))).choices[0]
            assert (choice.text, choice.finish_reason) == (expected, "stop")


REFUSED = [
    ({"regex": "("}, "regular expression"),
    ({"regex": "(x{1000}){1000}"}, ""),
    ({"grammar": "start: nowhere"}, "nowhere"),
    ({"response_format": schema_format({"type": "string", "pattern": "("})}, "pattern"),
    ({"response_format": schema_format({"type": "array", "uniqueItems": True})}, "uniqueItems"),
    ({"response_format": schema_format({"$ref": "#/nowhere"})}, "$ref"),
]


async def test_a_grammar_that_cannot_be_used_is_refused_and_the_worker_lives(smol):
    pid = await smol.server.pid()
    for fields, words in REFUSED:
        for stream in (False, True):
            error = await smol.refused(CHAT, chat_body(stream=stream, **fields))
            assert words in error["message"]
    assert (await smol.whole(CHAT, chat_body(max_tokens=1))).usage["completion_tokens"] == 1
    assert await smol.server.pid() == pid
