"""Every field of every body: null is the same as absent, zero is a value, another type or range is refused by the field's name."""

import gc
import json

import msgspec
import pytest
from http_asking import CHAT, COMPLETIONS, HI, chat_body, text_body
from pydantic import ValidationError

from pinyon.app.api.chat import ChatRequest
from pinyon.app.api.completions import CompletionRequest
from pinyon.app.api.fields import Fields, StreamOptions
from pinyon.app.api.guard import Caller
from pinyon.app.api.messages import ChatMessage, Part
from pinyon.app.api.tokens import DetokenizeRequest, TokenizeRequest
from pinyon.app.limits import MAX_CHOICES, MAX_MESSAGES, MAX_PARTS, MAX_PROMPT_TOKENS, MAX_USER_STOPS
from pinyon.engine import grammar
from pinyon.engine.request import MAX_LOGIT_BIAS, MAX_STOP_BYTES, MAX_TOKENS, MAX_TOP_LOGPROBS, SEED_LIMIT

TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"

VALUES = """0 -1 1 2 1.5 1.0 -0.0 1e-400 1e999 -1e999 NaN Infinity 2147483647 2147483648 4294967294 4294967295 9223372036854775808
-9223372036854775809 true false "" "0" "2" "x" "null" [] [null] [0] ["x"] [[]] {} {"a":1} {"1":1}""".split()
"""JSON as it stands in the body. Each is sent in each field."""

BOOL, TEXT = "true false", '"" "0" "2" "x" "null"'
COUNT = "1 2 2147483647"
SAMPLING = {
    "model": "",
    "stream": BOOL,
    "stream_options": '{} {"a":1} {"1":1}',
    "n": "1 2",
    "max_tokens": COUNT,
    "stop": '"0" "2" "x" "null" [] ["x"]',
    "seed": "0 1 2 2147483647 2147483648 4294967294",
    "temperature": "0 1 2 1.5 1.0 -0.0 1e-400",
    "top_p": "0 1 1.0 -0.0 1e-400",
    "top_k": "0 1 2 2147483647",
    "min_p": "0 1 1.0 -0.0 1e-400",
    "typical_p": "0 1 1.0 -0.0 1e-400",
    "repeat_penalty": "1 2 1.5 1.0",
    "presence_penalty": "0 -1 1 2 1.5 1.0 -0.0 1e-400",
    "frequency_penalty": "0 -1 1 2 1.5 1.0 -0.0 1e-400",
    "logit_bias": '{} {"1":1}',
    "user": TEXT,
    "cache": "",
    "private": BOOL,
    "deterministic": BOOL,
    "priority": "",
    "speculate": "",
    "ttft_deadline_s": "1 2 1.5 1.0",
    "ignore_eos": BOOL,
    "keep_alive": "0 -1 1 2 1.5 1.0 -0.0 1e-400 2147483647 2147483648 4294967294 4294967295 9223372036854775808"
    ' -9223372036854775809 "0" "2"',
    "regex": '"0" "2" "x" "null"',
    "grammar": '"0" "2" "x" "null"',
}
CHAT_FIELDS = SAMPLING | {
    "messages": "",
    "max_completion_tokens": COUNT,
    "logprobs": BOOL,
    "top_logprobs": "0 1 2",
    "response_format": "",
}
COMPLETION_FIELDS = SAMPLING | {
    "prompt": '"0" "2" "x" "null" [0] ["x"]',
    "echo": BOOL,
    "logprobs": "0 1 2",
}
TOKENIZE_FIELDS = {"model": "", "prompt": TEXT, "messages": ""}
DETOKENIZE_FIELDS = {"model": "", "tokens": "[] [0]"}

ROUTES = {
    CHAT: (ChatRequest, CHAT_FIELDS),
    COMPLETIONS: (CompletionRequest, COMPLETION_FIELDS),
    TOKENIZE: (TokenizeRequest, TOKENIZE_FIELDS),
    DETOKENIZE: (DetokenizeRequest, DETOKENIZE_FIELDS),
}
BASES = {
    CHAT: {"messages": HI, "max_tokens": 2, "logprobs": True},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 2},
    TOKENIZE: {"prompt": "Hi"},
    DETOKENIZE: {"tokens": [72]},
}


@pytest.mark.parametrize("route", ROUTES)
def test_each_field_is_in_the_table(route):
    """A new field needs its line above: which of the values it takes."""
    model, table = ROUTES[route]
    assert set(model.model_fields) == set(table)
    assert {value for accepted in table.values() for value in accepted.split()} <= set(VALUES)


def body_with(route, field, value):
    base = {name: known for name, known in BASES[route].items() if name != field}
    if (route, field) == (TOKENIZE, "messages"):
        base = {}
    return json.dumps(base)[:-1] + (", " if base else "") + f'"{field}": {value}}}'


@pytest.mark.parametrize(
    ("route", "field"), [(route, field) for route, (_, table) in ROUTES.items() for field in table]
)
async def test_each_value_is_taken_or_refused_by_the_field_s_name(api, route, field):
    accepted = ROUTES[route][1][field].split()
    for value in VALUES:
        response = await api.post(route, body_with(route, field, value))
        if value in accepted:
            assert response.status_code == 200, (value, response.text)
            continue
        is_name = field == "model" and value.startswith('"')
        assert response.status_code == (404 if is_name else 400), (value, response.text)
        error = response.json()["error"]
        if (field, value) == ("prompt", '""'):  # only the engine knows that nothing is added to it
            assert error["message"].startswith("the prompt is empty")
        else:
            assert error["param"].partition(".")[0] == field, (value, error)
        assert len(error["message"]) < 300
    assert api.server.is_idle


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_null_is_the_same_as_absent(model):
    base = BASES[CHAT if model is ChatRequest else COMPLETIONS]
    plain = asked(model, base)
    for name, field in model.model_fields.items():
        if not field.is_required() and name not in base:
            assert field.default is None
            assert asked(model, {**base, name: None}) == plain
    assert model.model_validate_json(json.dumps({**base, "unknown": None})).ignored() == []


CALLER = Caller("", "localhost:1")


def asked(model, body):
    request = model.model_validate_json(json.dumps(body))
    asks = [request.ask(CALLER)] if isinstance(request, ChatRequest) else request.asks(CALLER)
    return [msgspec.structs.replace(ask, id="") for ask in asks]


async def test_unknown_fields_are_taken_and_listed(api):
    body = chat_body(
        messages=[
            {"role": "user", "content": "Hi", "cache": True},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        ],
        zeta=0,
        alpha="",
        none=None,
        stream_options={"include_usage": True, "more": [1]},
        response_format={"type": "text", "about": 1},
    )
    answer = await api.both(CHAT, body)
    assert answer.ignored == [
        "alpha",
        "zeta",
        "stream_options.more",
        "messages.0.cache",
        "messages.1.content.0.cache_control",
        "response_format.about",
    ]
    assert (await api.both(COMPLETIONS, text_body(alpha=[], none=None))).ignored == ["alpha"]


def test_each_kind_of_object_keeps_what_it_does_not_know():
    kinds = [StreamOptions, ChatMessage, Part, ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]
    assert all(issubclass(kind, Fields) and kind.model_config["extra"] == "allow" for kind in kinds)


@pytest.mark.parametrize(
    "unknown", ["NaN", "1e999", "1" * 4000, "[" * 100 + "]" * 100, '{"a": {"b": NaN}}', '"\\u0000"']
)
async def test_an_unknown_field_may_hold_anything(api, unknown):
    response = await api.post(CHAT, json.dumps(chat_body())[:-1] + f', "x": {unknown}}}')
    assert response.status_code == 200
    assert response.json()["pinyon"]["ignored"] == ["x"]


LIMITS = [
    ({"n": MAX_CHOICES}, {"n": MAX_CHOICES + 1}),
    ({"max_tokens": MAX_TOKENS}, {"max_tokens": MAX_TOKENS + 1}),
    ({"seed": SEED_LIMIT - 2}, {"seed": SEED_LIMIT - 1}),
    ({"temperature": 100}, {"temperature": 100.1}),
    ({"temperature": 0.0001}, {"temperature": 0.00009}),
    ({"repeat_penalty": 0.0001}, {"repeat_penalty": 0.00009}),
    ({"top_p": 0}, {"top_p": -0.01}),
    ({"presence_penalty": -2}, {"presence_penalty": -2.01}),
    ({"stop": ["x"] * MAX_USER_STOPS}, {"stop": ["x"] * (MAX_USER_STOPS + 1)}),
    ({"stop": "x" * MAX_STOP_BYTES}, {"stop": "x" * (MAX_STOP_BYTES + 1)}),
    ({"stop": "é" * (MAX_STOP_BYTES // 2)}, {"stop": "é" * (MAX_STOP_BYTES // 2) + "x"}),
    ({"logit_bias": {str(i): 0 for i in range(200)}}, {"logit_bias": {str(i): 0 for i in range(MAX_LOGIT_BIAS + 1)}}),
    ({"logit_bias": {"259": 100}}, {"logit_bias": {"260": 100}}),
    ({"logit_bias": {"1": -100}}, {"logit_bias": {"1": -100.5}}),
]


@pytest.mark.parametrize(("within", "past"), LIMITS)
async def test_a_limit_itself_is_within(api, within, past):
    for route, base in ((CHAT, BASES[CHAT]), (COMPLETIONS, BASES[COMPLETIONS])):
        assert (await api.post(route, {**base, **within})).status_code == 200
        error = await api.refused(route, {**base, **past})
        assert error["param"].partition(".")[0] == next(iter(past))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**6}, "n"),
        ({"best_of": 10**6}, "best_of"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop"),
        ({"stop": "x" * (1 << 20)}, "stop"),
        ({"stop": "a\0b"}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"logit_bias": {str(i): 1 for i in range(100_000)}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x" * 10_000: 1}}, "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias.1"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"top_logprobs": 10**6}, "top_logprobs"),
        ({"top_logprobs": MAX_TOP_LOGPROBS + 1}, "top_logprobs"),
        ({"model": "x" * 513}, "model"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": HI * (MAX_MESSAGES + 1)}, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_goes_too_far_is_refused_before_anything_is_made_of_it(api, fields, param, stream):
    error = await api.refused(CHAT, {**BASES[CHAT], "stream": stream, **fields})
    assert error["param"].partition(".")[0] == param.partition(".")[0]
    assert len(error["message"]) < 300
    assert len(error["param"]) < 60
    assert api.server.model.asked == []


MANY = 100_000
PART = '{"type": "text", "text": ""}'


def array(item, count=MANY):
    return "[" + ",".join([item] * count) + "]"


def message(field, value):
    return f'[{{"role": "user", "{field}": {value}}}]'


LONG = [
    (CHAT, "stop", array("1")),
    (CHAT, "stop", array('"x"')),
    (CHAT, "messages", array("1")),
    (CHAT, "messages", message("content", array("{}"))),
    (CHAT, "messages", message("content", array(PART, MAX_PARTS + 1))),
    (CHAT, "messages", array(message("content", array(PART, MAX_PARTS // 2))[1:-1], 3)),
    (CHAT, "messages", message("tool_calls", array("1"))),
    (CHAT, "logit_bias", "{" + ",".join(f'"{token}": "x"' for token in range(MANY)) + "}"),
    (COMPLETIONS, "prompt", array("-1")),
    (COMPLETIONS, "prompt", array("1", MAX_PROMPT_TOKENS + 1)),
    (COMPLETIONS, "prompt", array("null")),
    (COMPLETIONS, "prompt", array("[-1]")),
    (COMPLETIONS, "prompt", array('"x"')),
    (TOKENIZE, "messages", array("{}")),
    (DETOKENIZE, "tokens", array("-1")),
    (DETOKENIZE, "tokens", array("1", MAX_PROMPT_TOKENS + 1)),
]


@pytest.mark.parametrize(("route", "field", "value"), LONG, ids=range(len(LONG)))
async def test_of_very_many_wrong_items_few_become_errors(api, route, field, value):
    body = body_with(route, field, value)
    with pytest.raises(ValidationError) as found:
        ROUTES[route][0].model_validate_json(body)
    assert found.value.error_count() < 10
    error = await api.refused(route, body)
    assert error["param"].partition(".")[0] == field
    assert len(error["message"]) < 300


def unbounded(schema, place="body"):
    """Yield the places in a JSON Schema that take lists of any length; what unknown fields hold is no place in it."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if isinstance(schema, dict):
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield place
        for name, inside in schema.items():
            yield from unbounded(inside, f"{place}.{name}")


@pytest.mark.parametrize("route", ROUTES)
def test_each_list_has_a_bound(route):
    assert list(unbounded(ROUTES[route][0].model_json_schema())) == []


def test_planted_without_a_bound_the_errors_and_the_list_are_found():
    class Planted(Fields):
        stop: str | list[str]

    with pytest.raises(ValidationError) as found:
        Planted.model_validate_json(f'{{"stop": {array("1")}}}')
    assert found.value.error_count() == MANY + 1
    assert list(unbounded(Planted.model_json_schema())) == ["body.properties.stop.anyOf.1"]


@pytest.mark.parametrize("was_enabled", [True, False])
async def test_the_collector_is_after_a_body_as_before(api, was_enabled):
    try:
        (gc.enable if was_enabled else gc.disable)()
        for body in (b"{", chat_body()):
            await api.post(CHAT, body)
            assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("source", "is_gbnf"),
    [
        ('root ::= "a"', True),
        ('# text\n\n  root-1\t::=\n "a"', True),
        ('start: "::="', False),
        ('start: "a"\n  | "b ::= c"', False),
        ("// a ::= b\nstart: /x/", False),
        ("\n" * 200_000, False),
        ("a" * 200_000, False),
    ],
    ids=range(7),
)
def test_a_grammar_is_gbnf_where_a_line_begins_a_rule_of_it(monkeypatch, source, is_gbnf):
    monkeypatch.setattr(grammar, "gbnf", lambda _source: "gbnf")
    monkeypatch.setattr(grammar, "lark", lambda _source: "lark")
    request = CompletionRequest(prompt="x", grammar=source)
    assert request.only_grammar() == ("gbnf" if is_gbnf else "lark")


@pytest.mark.parametrize("bias", ["NaN", "Infinity", "-Infinity", "1e999", '"1"', "null", "true", "[]"])
async def test_a_bias_is_a_number(api, bias):
    error = await api.refused(CHAT, json.dumps(chat_body())[:-1] + f', "logit_bias": {{"5": {bias}}}}}')
    assert error["param"] == "logit_bias"


@pytest.mark.parametrize("name", [*ChatRequest.refused])
@pytest.mark.parametrize("nothing", [None, False, [], {}, "", 0])
async def test_a_field_that_is_not_served_yet_is_refused_unless_it_asks_for_nothing(api, name, nothing):
    answer = await api.both(CHAT, chat_body(**{name: nothing}))
    assert (answer.choices[0].text, answer.ignored) == ("Hello, you.", [])
    error = await api.refused(CHAT, chat_body(**{name: [{"type": "function"}]}))
    assert error["param"] == name
    assert ChatRequest.refused[name] in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe{}",
        b'{"messages": "\xff"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\\udc00\\ud800"}]}',
        b'{"stop": "\\ud83e"}',
        b"[" * 100_000,
        b'{"a":' * 5000,
        b'{"messages": [{"role": "user", "content": "a\nb"}]}',
    ],
)
@pytest.mark.parametrize("route", ROUTES)
async def test_what_is_no_json_is_refused(api, route, body):
    error = await api.refused(route, body)
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert error["message"].startswith("the body is not JSON: ")


@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"x"', b"true"])
@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_is_an_object(api, route, body):
    error = await api.refused(route, body)
    assert (error["param"], error["message"]) == (None, "the body: Input should be an object")


async def test_the_content_type_of_a_script_does_not_matter(api):
    for content_type in ("application/json", "text/plain", "application/octet-stream", ""):
        response = await api.client.post(CHAT, content=json.dumps(chat_body()), headers={"content-type": content_type})
        assert response.status_code == 200


SHAPES = {"guided_json": {"type": "object"}, "structured_outputs": {"regex": "a"}, "json_schema": {"type": "object"}}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, text_body())])
@pytest.mark.parametrize("field", SHAPES)
async def test_another_server_s_way_to_shape_an_answer_is_refused_not_ignored(api, path, body, field):
    error = await api.refused(path, {**body, field: SHAPES[field]})
    assert (error["param"], "response_format" in error["message"]) == (field, True)


async def test_a_shape_that_a_route_does_not_know_is_refused(api):
    asked = {"response_format": {"type": "json_object"}}
    assert (await api.refused(COMPLETIONS, {**text_body(), **asked}))["param"] == "response_format"
    asked["response_format"]["schema"] = {"type": "object"}
    assert (await api.refused(CHAT, {**chat_body(), **asked}))["param"] == "response_format.schema"
