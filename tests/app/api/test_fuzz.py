"""Requests made up from the OpenAPI document, against a real engine: none is a server error, none kills the worker."""

import asyncio
import json
import random
from collections import Counter

import pytest
import schemathesis
from http_asking import listening
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from real_server import real_server
from sse_stream import check_chunks, read_stream, strict_json
from tiny_models import VOCABULARY

pytestmark = pytest.mark.model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SHAPES = {
    "regex": ["[a-z]{1,3}", r"\d+|\n", "é?"],
    "grammar": ['root ::= "a" | "b" root', 'start: "a"+ /[b-d]/', 'start: "x"?'],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}],
    "stop": ["a", ["\n", "é"], [str(number) for number in range(16)]],
    "logit_bias": [{"72": 5, "80": -100}, {"0": 100}, {str(token): -100 for token in range(200)}],
    "prompt": [[72, 105], [[72], [80, 81]], ["a", "b"], [0]],
}
"""What reaches the worker in other ways than text and numbers do, by field. Made-up ones are mostly refused, and each new grammar
starts a process: most requests have at most one, of these.
"""


@st.composite
def requests(draw, operations):
    """A request of one of the operations, and which of SHAPES it has; most bodies are such that the engine gets to answer."""
    case = draw(draw(st.sampled_from(operations)).as_strategy())
    # Hypothesis favours the first of what it may choose from; these choices are even.
    chance = random.Random(repr(case.body))
    shape = None
    if isinstance(case.body, dict) and chance.randrange(6):
        case.body = servable(case.path, case.body)
        shape = chance.choice([*shapes_of(case.path), None])
        if shape is not None:
            case.body[shape] = chance.choice(SHAPES[shape])
    return case, shape


def shapes_of(path):
    missing = {"/v1/chat/completions": "prompt", "/v1/completions": "response_format"}
    return [shape for shape in SHAPES if path in missing and shape != missing[path]]


def servable(path, body):
    body = {
        name: with_ints(value) for name, value in body.items() if name not in (SHAPES.keys() - {"prompt"}) | {"model"}
    }
    match path:
        case "/v1/chat/completions":
            messages = [{"role": "user", "content": as_text(message.get("content"))} for message in body["messages"]]
            return body | {"max_tokens": 3, "max_completion_tokens": None, "logprobs": True, "messages": messages[:3]}
        case "/v1/completions":
            return body | {"max_tokens": 3, "prompt": as_text(body["prompt"]), "suffix": None, "best_of": None}
        case "/v1/tokenize":
            return {"prompt": as_text(body)}
        case "/v1/detokenize":
            return body | {"tokens": [abs(token) % VOCABULARY for token in body["tokens"]]}
        case _:
            return body


def as_text(value):
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)[:100]


def with_ints(value):
    """JSON Schema takes 1.0 for an integer; the door does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_ints(item) for item in value]
    return value


def check(response):
    """Whatever was asked, the answer is one of these."""
    status, (content_type,) = response.status_code, response.headers["content-type"]
    kind = content_type.partition(";")[0]
    assert status < 500 or (status == 503 and response.headers.get("retry-after")), (status, response.content)
    if kind == "text/event-stream":
        stream = read_stream(response.content)
        check_chunks(stream, wants_usage=any("usage" in chunk for chunk in stream.chunks))
        assert stream.done, stream.error
    elif kind == "application/json":
        document = strict_json(response.content.decode())
        if status >= 400 and status != 503:
            assert list(document) == ["error"]
            assert document["error"]["message"]
    else:
        assert kind in {"text/plain", "text/html"}


def fuzz(url, examples):
    """Send that many requests; return how often each route, and each of SHAPES, was answered with which status."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.config.max_stream_events = 10_000  # it stops reading long before the end of a stream else
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses, shapes = Counter(), Counter()

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(operations))
    def each(request):
        case, shape = request
        response = case.call(timeout=60)  # a busy machine is no fault of the server
        statuses[case.path, response.status_code] += 1
        shapes[shape, response.status_code] += 1
        check(response)

    each()
    return statuses, shapes


async def run(tiny, tmp_path, examples):
    async with real_server(tiny, tmp_path / "home") as server, listening(server.app) as url:
        pid = await server.pid()
        statuses, shapes = await asyncio.to_thread(fuzz, url, examples)
        assert await server.pid() == pid, "the worker died"
        assert server.door.running + server.door.waiting == 0
    assert statuses.total() >= examples
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/tokenize", "/v1/detokenize"):
        assert statuses[path, 200] > examples / 20, f"too few requests got through: {statuses}"
    for shape in SHAPES:
        assert shapes[shape, 200] > examples / 100, f"too few of a shape got through: {shapes}"


async def test_made_up_requests_harm_nothing(tiny, tmp_path):
    await run(tiny, tmp_path, 500)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
async def test_fifty_thousand_made_up_requests_harm_nothing(tiny, tmp_path):
    await run(tiny, tmp_path, 50_000)


class Planted:
    def __init__(self, status, body, kind="application/json"):
        self.status_code, self.content, self.headers = status, body, {"content-type": [kind]}


@pytest.mark.parametrize(
    "planted",
    [
        Planted(500, b'{"error": {"message": "m"}}'),
        Planted(503, b'{"error": {"message": "m"}}'),
        Planted(400, b'{"detail": "m"}'),
        Planted(200, b"{"),
        Planted(200, json.dumps({"x": float("nan")}).encode()),
        Planted(200, b"data: {}", "text/event-stream"),
    ],
)
def test_a_planted_fault_in_an_answer_is_found(planted):
    with pytest.raises((AssertionError, ValueError)):
        check(planted)
