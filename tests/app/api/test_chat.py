"""POST /v1/chat/completions: the same answer whole and streamed, in OpenAI's shapes."""

import pytest
from fake_service import THINK, says
from fakes import END_OF_TURN, USER_TAG, hashed, hashed_logits
from http_asking import CHAT, COMPLETIONS, chat_body, text_body
from sse_stream import check_chunks, strict_json

from pinyon.engine import grammar
from pinyon.engine.engine import NO_DRAFTS
from pinyon.engine.request import MAX_CHOICES, Reasoning, Speculate

OPENED = Reasoning("<think>", ("</think>",), opened=True)
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
LITERAL = grammar.json_schema(SCHEMA).source
"""What the fake grammar of this schema holds the answer to."""
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
NOTHING_CACHED = {
    "resident": 0,
    "ram": 0,
    "disk": 0,
    "miss": "new",
    "position": 0,
    "expected": "",
    "got": "",
    "advice": "",
}


def usage(cached_tokens):
    return {
        "prompt_tokens": 9,
        "completion_tokens": 11,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


ODD_TEXTS = {
    "NUL": "a\0b",
    "bidi override": "a\u202eb\u202cc",
    "ZWJ chain": "👩‍👩‍👧‍👦👩🏽‍🚒",
    "combining marks": "e" + "\u0301" * 300,
    "NFC beside NFD": "\u00e9 e\u0301 \u212b",
    "emoji and CJK": "ok 🫠 你好 é",
    "line ends": "a\r\n\n\rb\u2028c\u2029\x85",
    "what looks like SSE": "data: [DONE]\n\ndata: {}\n\n: comment\n\n",
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "quotes": '"\\/\b\f\t\x01\x7f</script>',
}


async def test_a_whole_answer_has_openai_s_shape(api):
    document = strict_json((await api.post(CHAT, chat_body(seed=7))).text)
    assert document.pop("id").startswith("chatcmpl-")
    assert isinstance(document.pop("created"), int)
    timings = document["pinyon"].pop("timings")
    assert list(timings) == ["queue_s", "prefill_s", "decode_s"]
    drafts = {"drafter": "", "steps": 0, "tokens": 0, "drafted": 0, "accepted": 0, "depths": {}, "gain": 1.0}
    assert document["pinyon"].pop("speculation") == {**drafts, "off": NO_DRAFTS}
    assert document == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, you.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": usage(cached_tokens=0),
        "pinyon": {"ignored": [], "seed": 7, "cache": NOTHING_CACHED},
    }


async def test_a_stream_is_the_role_the_text_and_the_reason(api):
    stream = await api.stream(CHAT, chat_body())
    check_chunks(stream)
    deltas = [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in stream.chunks]
    letters = [({"content": letter}, None) for letter in "Hello, you."]
    assert deltas == [({"role": "assistant", "content": ""}, None), *letters, ({}, "stop")]
    assert stream.chunks[0]["id"].startswith("chatcmpl-")
    assert (stream.comments, stream.done) == ([], True)


async def test_usage_comes_only_where_it_was_asked_for(api):
    for options in (None, {}, {"include_usage": None}, {"include_usage": False}):
        check_chunks(await api.stream(CHAT, chat_body(stream_options=options)))
    asked = await api.stream(CHAT, chat_body(stream_options={"include_usage": True}))
    check_chunks(asked, wants_usage=True)
    assert asked.chunks[-1]["usage"] == usage(cached_tokens=8)


async def test_what_was_cached_is_told(api):
    first = strict_json((await api.post(CHAT, chat_body())).text)
    again = strict_json((await api.post(CHAT, chat_body())).text)
    assert [document["usage"] for document in (first, again)] == [usage(cached_tokens=0), usage(cached_tokens=8)]
    assert first["pinyon"]["cache"] == NOTHING_CACHED
    assert again["pinyon"]["cache"] == {**NOTHING_CACHED, "resident": 8, "miss": None}


async def test_the_cache_can_be_left_out(api):
    for _ in range(2):
        document = strict_json((await api.post(CHAT, chat_body(cache="off"))).text)
        assert document["usage"] == usage(cached_tokens=0)
        assert document["pinyon"]["cache"] == {**NOTHING_CACHED, "miss": "disabled"}


async def test_a_private_request_is_private_in_the_engine(api):
    for private in (True, False):
        await api.post(CHAT, chat_body(private=private))
    assert [ask.private for ask in api.server.model.asked] == [True, False]


async def test_a_deterministic_request_is_deterministic_in_the_engine(api):
    for deterministic in (True, False, None):
        await api.post(CHAT, chat_body(deterministic=deterministic))
    assert [ask.deterministic for ask in api.server.model.asked] == [True, False, None]


async def test_drafts_are_as_they_are_asked_for(api):
    for speculate in ("off", "suffix", "auto", None):
        await api.post(CHAT, chat_body(speculate=speculate))
    assert [ask.speculate for ask in api.server.model.asked] == [Speculate.OFF, Speculate.SUFFIX, Speculate.AUTO, None]
    assert (await api.refused(CHAT, chat_body(speculate="deep")))["param"] == "speculate"


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
async def test_text_comes_out_as_the_model_wrote_it(make_api, text):
    api = make_api(says(text))
    assert (await api.both(CHAT, chat_body())).choices[0].text == text
    assert (await api.both(COMPLETIONS, text_body(max_tokens=3000))).choices[0].text == text


@pytest.mark.parametrize(
    ("tokens", "limit", "text"),
    [
        (b"ok " + "🫠".encode(), 5, "ok \ufffd"),
        (b"\xffA", None, "\ufffdA"),
        (b"\xf0\x9f\xffA", None, "\ufffd\ufffdA"),
        (b"\xed\xa0\x80", None, "\ufffd" * 3),
    ],
)
async def test_what_is_no_character_becomes_a_replacement(make_api, tokens, limit, text):
    answer = await make_api(says(tokens)).both(CHAT, chat_body(max_tokens=limit))
    assert answer.choices[0].text == text


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("beta gamma", "alpha ", "stop"),
        (["ta ga", "beta gamma"], "alpha be", "stop"),
        (["nowhere", "mma delta"], "alpha beta ga", "stop"),
        ("alpha", "", "stop"),
        ("delta!", "alpha beta gamma delta", "stop"),
        ([], "alpha beta gamma delta", "stop"),
    ],
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, text_body())])
async def test_a_stop_string_ends_the_text_before_itself(make_api, path, body, stop, text, reason):
    answer = await make_api(says("alpha beta gamma delta")).both(path, {**body, "stop": stop})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, reason)


async def test_max_tokens_ends_an_answer_for_its_length(api):
    for fields in ({"max_tokens": 4}, {"max_completion_tokens": 4}, {"max_tokens": 9, "max_completion_tokens": 4}):
        answer = await api.both(CHAT, chat_body(**fields))
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hell", "length")
        assert answer.usage["completion_tokens"] == 4


async def test_each_of_n_choices_has_its_own_text_and_end(make_api):
    api = make_api(hashed_logits)
    answer = await api.both(CHAT, chat_body(n=MAX_CHOICES, temperature=1, seed=3, max_tokens=40, logprobs=True))
    assert len({choice.text for choice in answer.choices}) == MAX_CHOICES
    assert {choice.finish_reason for choice in answer.choices} == {"stop", "length"}
    assert answer.usage["prompt_tokens"] == 9
    assert answer.usage["completion_tokens"] == sum(len(choice.text) for choice in answer.choices)
    for offset, choice in enumerate(answer.choices):
        alone = await api.both(CHAT, chat_body(temperature=1, seed=3 + offset, max_tokens=40, logprobs=True))
        assert alone.choices[0] == choice


async def test_a_drawn_seed_is_told_and_repeats_the_answer(make_api):
    api = make_api(hashed_logits)
    drawn = await api.whole(CHAT, chat_body(temperature=1, max_tokens=20))
    again = await api.both(CHAT, chat_body(temperature=1, max_tokens=20, seed=drawn.seed))
    assert again == drawn


async def test_logprobs_come_where_they_were_asked_for(make_api):
    api = make_api(says("é."))
    assert (await api.both(CHAT, chat_body())).choices[0].logprobs is None
    plain = (await api.both(CHAT, chat_body(logprobs=True))).choices[0].logprobs
    assert [(entry["bytes"], entry["top_logprobs"]) for entry in plain["content"]] == [
        ([195], []),
        ([169], []),
        ([46], []),
    ]
    top = (await api.both(CHAT, chat_body(logprobs=True, top_logprobs=3))).choices[0].logprobs["content"]
    for entry in top:
        chosen = {name: entry[name] for name in ("token", "logprob", "bytes")}
        assert (entry["top_logprobs"][0], len(entry["top_logprobs"])) == (chosen, 3)


async def test_top_logprobs_without_logprobs_are_refused(api):
    error = await api.refused(CHAT, chat_body(top_logprobs=2))
    assert (error["param"], error["message"]) == ("top_logprobs", "top_logprobs needs logprobs: true")


# Thoughts.


@pytest.mark.parametrize(
    ("tags", "says_", "reasoning", "text", "reasoning_tokens"),
    [
        pytest.param(OPENED, "abc</think>\n\nans", "abc", "ans", 11, id="opened by the prompt"),
        pytest.param(THINK, "<think>abc</think>ans", "abc", "ans", 18, id="opened by the model"),
        pytest.param(OPENED, "a</think>b<think>c</think>d", "a\nc", "bd", 25, id="twice"),
        pytest.param(OPENED, "only thoughts", "only thoughts", "", 13, id="the end inside"),
        pytest.param(THINK, "Write `<think>` first.", None, "Write `<think>` first.", 0, id="the tag in backticks"),
        pytest.param(THINK, "a < b <th> c", None, "a < b <th> c", 0, id="half a tag"),
        pytest.param(THINK, "no thoughts", None, "no thoughts", 0, id="none"),
        pytest.param(OPENED, "", None, "", 0, id="nothing at all"),
        pytest.param(None, "<think>abc</think>", None, "<think>abc</think>", 0, id="a model without tags"),
    ],
)
async def test_thoughts_stand_apart_from_the_answer(make_api, tags, says_, reasoning, text, reasoning_tokens):
    answer = await make_api(says(says_), reasoning=tags).both(CHAT, chat_body())
    choice = answer.choices[0]
    assert (choice.reasoning, choice.text, choice.finish_reason) == (reasoning, text, "stop")
    assert answer.usage["completion_tokens_details"] == {"reasoning_tokens": reasoning_tokens}
    assert answer.usage["completion_tokens"] == len(says_)


async def test_a_limit_reached_in_thoughts_leaves_the_answer_empty(make_api):
    answer = await make_api(says("thinking</think>ans"), reasoning=OPENED).both(CHAT, chat_body(max_tokens=5))
    choice = answer.choices[0]
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("think", "", "length")
    assert answer.usage["completion_tokens_details"] == {"reasoning_tokens": 5}


async def test_stop_strings_and_logprobs_are_the_answer_s(make_api):
    api = make_api(says("a stop b</think>x stop y"), reasoning=OPENED)
    choice = (await api.both(CHAT, chat_body(stop="stop", logprobs=True))).choices[0]
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("a stop b", "x ", "stop")
    assert "".join(entry["token"] for entry in choice.logprobs["content"]) == "x stop"


async def test_a_schema_shapes_the_answer_and_not_the_thoughts(make_api):
    opened = make_api(says("hmm</think>"), reasoning=OPENED)
    choice = (await opened.both(CHAT, chat_body(response_format=FORMAT))).choices[0]
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("hmm", LITERAL, "stop")
    tags = Reasoning("<tool>", ("</think>",))  # a token of the fake vocabulary
    may_open = make_api(says([USER_TAG, *b"hmm</think>"]), reasoning=tags)
    choice = (await may_open.both(CHAT, chat_body(response_format=FORMAT))).choices[0]
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("hmm", LITERAL, "stop")


# What shapes an answer.


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"response_format": FORMAT}, grammar.json_schema(SCHEMA)),
        ({"response_format": {"type": "json_object"}}, grammar.json_object()),
        ({"regex": "[ab]+"}, grammar.regex("[ab]+")),
        ({"grammar": 'start: "yes"'}, grammar.lark('start: "yes"')),
        ({"grammar": 'root ::= "yes"'}, grammar.gbnf('root ::= "yes"')),
    ],
)
async def test_a_grammar_shapes_the_answer(api, fields, made):
    assert (await api.both(CHAT, chat_body(**fields))).choices[0].text == made.source
    assert {ask.grammar for ask in api.server.model.asked} == {made}


async def test_text_is_a_format_without_effect(api):
    answer = await api.both(CHAT, chat_body(response_format={"type": "text"}))
    assert answer.choices[0].text == "Hello, you."


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a `schema`"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
            "schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
            "'not'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
            "response_format.json_schema.schema",
            "allows no answer",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        ({"regex": ""}, "regex", "empty"),
        ({"regex": "a\0"}, "regex", "NUL"),
        ({"grammar": "x" * 70_000}, "grammar", "65,536"),
        ({"grammar": 'start: "\0"'}, "grammar", "NUL"),
        ({"regex": "a", "grammar": 'start: "a"'}, "grammar", "regex and grammar"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format", "regex and response_format"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_cannot_be_used_is_refused(api, fields, param, words, stream):
    error = await api.refused(CHAT, chat_body(stream=stream, **fields))
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert words in error["message"]


# What a context holds.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "overhead"), [(CHAT, len("user: \n")), (COMPLETIONS, 0)])
async def test_a_prompt_needs_room_for_one_token_of_the_answer(make_api, path, overhead, stream):
    def body(tokens):
        text = "x" * (tokens - overhead)
        return chat_body(messages=[{"role": "user", "content": text}]) if path == CHAT else text_body(prompt=text)

    api = make_api(hashed, cells=100)
    answer = await api.both(path, body(99))
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (99, 1)
    assert answer.choices[0].finish_reason == "length"
    for tokens in (100, 101, 5000):
        error = await api.refused(path, {**body(tokens), "stream": stream})
        assert error["code"] == "context_length_exceeded"
        assert (error["prompt_tokens"], error["context_tokens"]) == (tokens, 100)
        assert f"has {tokens:,} tokens, the context holds 100" in error["message"]


async def test_the_engine_sees_the_whole_prompt(api):
    answer = await api.whole(CHAT, chat_body(messages=[{"role": "user", "content": "secret " + "x" * 500}]))
    computed = sum(rows for batch in api.server.model.runner.batches for _, rows in batch)
    assert computed == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"] == 514 + 11


async def test_what_was_chosen_reaches_the_model_and_the_rest_is_left_to_it(api):
    chosen = {
        "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1, "seed": 0,
        "presence_penalty": 0, "frequency_penalty": 0,
    }  # fmt: skip
    await api.whole(CHAT, chat_body(**chosen, logit_bias={"65": -100}))
    await api.whole(CHAT, chat_body())
    full, bare = api.server.model.asked
    assert chosen == {name: getattr(full.sampling, name) for name in chosen}
    assert full.sampling.logit_bias == ((65, -100.0),)
    assert all(getattr(bare.sampling, name) is None for name in (*chosen, "logit_bias"))
    assert (bare.max_tokens, bare.stop, bare.n, bare.logprobs, bare.grammar) == (None, (), 1, None, None)


async def test_a_bias_changes_the_answer(make_api):
    api = make_api(says("a"))
    answer = await api.both(CHAT, chat_body(logit_bias={str(ord("b")): 100, str(END_OF_TURN): 50}, max_tokens=3))
    assert answer.choices[0].text == "bbb"
