"""What goes wrong, as a status and OpenAI's error object; and nothing in it that a client must not read."""

import logging
import os
import re
import traceback
from typing import Annotated

import msgspec
import pytest
from fake_service import HIDDEN_PATH, raises
from http_asking import CHAT, COMPLETIONS, chat_body, text_body
from pydantic import BaseModel, Field, ValidationError
from sse_stream import check_chunks

from pinyon.app import errors as app_errors
from pinyon.app.api.errors import MANY_FAULTS, ApiError, invalid, of_exception, of_failure
from pinyon.app.limits import RETRY_AFTER_S
from pinyon.engine import errors as engine_errors
from pinyon.engine.events import Failed, FailureKind
from pinyon.models import errors as model_errors

PATH = str(HIDDEN_PATH)
LEAKY = f"cannot read {PATH}, built with llama.cpp b1234"

CASES = [
    (engine_errors.InvalidRequestError("n is 9", "n"), 400, "invalid_request", "n", "n is 9"),
    (engine_errors.ContextOverflowError(9, 5), 400, "context_length_exceeded", None, "9 tokens"),
    (engine_errors.ModelLoadError(LEAKY), 500, "load_failed", None, "cannot be loaded"),
    (engine_errors.DoesNotFitError(LEAKY), 500, "does_not_fit", None, "does not fit"),
    (engine_errors.ModelQuarantinedError(LEAKY), 500, "load_failed", None, "cannot be loaded"),
    (engine_errors.EngineCrashedError(LEAKY), 500, "engine_crash", None, "the engine died"),
    (engine_errors.EngineStuckError(LEAKY), 504, "engine_stuck", None, "no sign of life"),
    (engine_errors.EngineStartError(LEAKY), 500, "engine_error", None, "the engine failed"),
    (engine_errors.NativeError(LEAKY), 500, "engine_error", None, "the engine failed"),
    (engine_errors.ProtocolError(LEAKY), 500, "engine_error", None, "the engine failed"),
    (engine_errors.OverloadedError("full", 3.2), 503, "overloaded", None, "full: try again in 4 s"),
    (engine_errors.ClientLimitError("too many", 0.0), 429, "client_limit", None, "too many: try again in 1 s"),
    (app_errors.ShuttingDownError("ends"), 503, "shutting_down", None, "ends"),
    (app_errors.NoRoomError("b is answering"), 503, "overloaded", "model", "b is answering"),
    (app_errors.TooLargeError("needs 9 GiB"), 500, "does_not_fit", "model", "needs 9 GiB"),
    (app_errors.ModelSlotError("a is loaded"), 400, "model_not_loaded", "model", "a is loaded"),
    (app_errors.UsageError("no"), 400, None, None, "no"),
    (model_errors.ModelNotFoundError(LEAKY), 404, "model_not_found", "model", "not here"),
    (model_errors.ModelFileError(LEAKY), 500, "load_failed", None, "cannot be loaded"),
    (model_errors.StoreError(LEAKY), 500, "load_failed", None, "cannot be loaded"),
    (model_errors.TemplateRejectedError("only questions"), 400, "template_error", "messages", "only questions"),
    (model_errors.TemplateMissingError("no template"), 400, "template_error", "messages", "no template"),
    (model_errors.TemplateTooExpensiveError("2 s"), 422, "template_too_expensive", "messages", "2 s"),
    (RuntimeError(LEAKY), 500, None, None, "a fault in Pinyon itself"),
    (OSError(2, "No such file", PATH), 500, None, None, "a fault in Pinyon itself"),
    (invalid("n", "n is 9"), 400, "invalid_value", "n", "n is 9"),
]


def cannot_load(api, error):
    """Nothing is loaded, and loading fails."""
    api.server.service.loaded, api.server.service.load_error = None, error


@pytest.mark.parametrize(
    ("error", "status", "code", "param", "words"), CASES, ids=[type(case[0]).__name__ for case in CASES]
)
async def test_each_error_has_its_status_and_code(api, error, status, code, param, words):
    cannot_load(api, error)
    found = await api.refused(CHAT, chat_body(), status)
    assert (found["code"], found["param"]) == (code, param)
    assert words in found["message"]
    assert leaks_in(msgspec.json.encode(found)) == []


FOR_CLIENTS = (
    engine_errors.InvalidRequestError, engine_errors.ContextOverflowError, engine_errors.OverloadedError, model_errors.TemplateError, app_errors.AppError,
    app_errors.TooLargeError,
)  # fmt: skip
"""Errors whose text is written for clients; what raises them must not quote paths."""


@pytest.mark.parametrize("module", [engine_errors, app_errors, model_errors])
def test_every_other_error_of_the_layers_is_hidden(module):
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    assert len(kinds) > 5
    for kind in kinds:
        if not issubclass(kind, FOR_CLIENTS):
            error = kind.__new__(kind, LEAKY)
            assert str(error) == LEAKY
            assert leaks_in(msgspec.json.encode(of_exception(error).answer)) == []


async def test_what_is_hidden_from_clients_is_in_the_log(api, caplog):
    for error in (engine_errors.ModelLoadError(LEAKY), model_errors.ModelNotFoundError(LEAKY), RuntimeError(LEAKY)):
        caplog.clear()
        cannot_load(api, error)
        await api.post(CHAT, chat_body())
        assert LEAKY in caplog.text


async def test_busy_errors_say_when_to_come_back(api):
    cannot_load(api, app_errors.ShuttingDownError("ends"))
    response = await api.post(CHAT, chat_body())
    assert response.headers["retry-after"] == str(RETRY_AFTER_S)
    assert response.json()["error"]["type"] == "server_error"
    cannot_load(api, engine_errors.OverloadedError("full", 17.0))
    response = await api.post(CHAT, chat_body())
    assert response.headers["retry-after"] == "17"
    assert response.json()["error"]["retry_after_s"] == 17


@pytest.mark.parametrize("kind", FailureKind)
def test_each_failure_has_a_status(kind):
    error = of_failure(Failed(kind, LEAKY))
    for_clients = {
        FailureKind.INVALID_REQUEST: 400,
        FailureKind.CONTEXT_OVERFLOW: 400,
        FailureKind.OVERLOADED: 503,
        FailureKind.CLIENT_LIMIT: 429,
    }
    hidden = {FailureKind.ENGINE_STUCK: 504}
    assert error.status == {**for_clients, **hidden}.get(kind, 500)
    assert (error.message == LEAKY) == (kind in for_clients), "only these are written for clients"


async def test_the_two_numbers_of_a_prompt_that_is_too_long_are_fields(api):
    error = await api.refused(COMPLETIONS, text_body(prompt="x" * 4096))
    assert list(error) == ["message", "type", "param", "code", "prompt_tokens", "context_tokens"]


NO_ROUTE = "there is no such route: this server has OpenAI's API under /v1, for example /v1/chat/completions; /docs tells the rest"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, NO_ROUTE),
        ("GET", "/v1", 404, NO_ROUTE),
        ("POST", "/v1/embeddings", 404, NO_ROUTE),
        ("GET", CHAT, 405, "the route does not take this method"),
        ("DELETE", "/v1/models/fake", 405, "the route does not take this method"),
        ("POST", "/health", 405, "the route does not take this method"),
    ],
)
async def test_unknown_routes_and_methods_are_json_errors(api, method, path, status, message):
    response = await api.client.request(method, path)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    error = response.json()["error"]
    assert (error["message"], error["type"]) == (message, "invalid_request_error")


class Inner(BaseModel):
    value: int


class Unions(BaseModel):
    model_config = {"strict": True}
    field: str | Annotated[list[Inner], Field(max_length=2)] | None = None
    flag: bool | dict[str, int] | None = None


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({"field": 5}, "field"),
        ({"field": [{"value": "x"}]}, "field.0.value"),
        ({"field": [{}]}, "field.0.value"),
        ({"field": [5]}, "field.0"),
        ({"flag": 5}, "flag"),
        ({"flag": {"key": "x"}}, "flag.key"),
        ({"flag": {"k" * 999: "x"}}, "flag." + "k" * 40),
    ],
)
def test_a_fault_in_a_union_is_told_by_its_field(document, param):
    with pytest.raises(ValidationError) as found:
        Unions.model_validate(document)
    assert of_exception(found.value).param == param


def test_of_a_union_the_branch_of_the_right_type_is_told():
    with pytest.raises(ValidationError) as found:
        Unions.model_validate({"field": [{"value": 1}] * 3})
    assert of_exception(found.value).message.startswith("field: List should have at most 2 items")


class Unbounded(BaseModel):
    values: list[int]


@pytest.mark.parametrize(
    ("count", "message"), [(MANY_FAULTS, "values.0: "), (MANY_FAULTS + 1, "the body: 2,049 of its values are wrong")]
)
def test_very_many_faults_are_only_counted(count, message):
    with pytest.raises(ValidationError) as found:
        Unbounded.model_validate({"values": ["x"] * count})
    error = of_exception(found.value)
    assert error.status == 400
    assert error.message.startswith(message)


def test_an_error_is_one_object_of_openai_s():
    body = msgspec.json.decode(msgspec.json.encode(invalid("n", "n is 9").answer))
    assert body == {
        "error": {"message": "n is 9", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }


# What no answer may hold.

SECRET = "hunter2-of-the-environment"
PROMPT = "the user's private words"


def leaks_in(body: bytes) -> list[str]:
    """What in an answer would tell a stranger about this machine or about others' requests."""
    text = body.decode()
    patterns = {
        "path": r"(?<![\w/<#])/(?!v1/|health|openapi|docs|metrics|pinyon/)[a-z]+(?:/[\w.-]+)+|[A-Z]:\\\\",
        "traceback": r"Traceback|File \\?\"|line \d+, in |\.py\b",
        "environment": re.escape(SECRET),
        "prompt": re.escape(PROMPT),
        "file version": r"\bb1234\b",
        "object": r"<\w[\w.]* object at|0x[0-9a-f]{8}",
    }
    return [name for name, pattern in patterns.items() if re.search(pattern, text)]


async def test_no_answer_leaks(make_api, monkeypatch, caplog):
    monkeypatch.setenv("PINYON_TEST_SECRET", SECRET)
    private = [{"role": "user", "content": PROMPT}]
    answers = []
    for error in (engine_errors.NativeError(LEAKY), engine_errors.EngineCrashedError(LEAKY)):
        api = make_api(raises(3, error))
        for stream in (False, True):
            answers.append(await api.post(CHAT, chat_body(messages=private, stream=stream)))
            answers.append(await api.post(COMPLETIONS, text_body(prompt=PROMPT, stream=stream)))
    api = make_api()
    cannot_load(api, RuntimeError(f"{LEAKY} {PROMPT} {os.environ['PINYON_TEST_SECRET']}"))
    answers.append(await api.post(CHAT, chat_body(messages=private)))
    answers += [await api.post(CHAT, body) for body in (b"{", {"messages": 5, "x": PROMPT}, chat_body(n=PROMPT))]
    paths = ("/docs", "/openapi.json", "/health", "/metrics", "/v1/models", "/v1/models/x", "/nowhere", "/v1/../../etc")
    answers += [await api.get(path) for path in paths]
    for answer in answers:
        assert leaks_in(answer.content) == [], answer.text
    assert any(LEAKY in record.getMessage() for record in caplog.records), "the log has it"


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (f"cannot read {PATH}", ["path"]),
        (r"cannot read C:\\models\\x.gguf", ["path"]),
        (SECRET, ["environment"]),
        (f"the prompt was {PROMPT}", ["prompt"]),
        ("built with b1234", ["file version"]),
        ("<pinyon.app.api.door.Door object at 0x7f0000000000>", ["object"]),
        ("see POST /v1/chat/completions and /openapi.json", []),
    ],
)
def test_a_planted_leak_is_found(planted, found):
    assert leaks_in(planted.encode()) == found


def test_a_planted_traceback_is_found():
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert "traceback" in leaks_in("".join(traceback.format_exception(raised.value)).encode())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_failure_after_some_tokens_is_one_event_and_then_the_end(make_api, path):
    api = make_api(raises(5, engine_errors.NativeError(LEAKY)))
    stream = await api.stream(path, chat_body() if path == CHAT else text_body())
    check_chunks(stream)
    assert stream.error == {
        "message": "the engine failed on this request; the server's log says why",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }
    texts = [
        choice.get("text") or choice.get("delta", {}).get("content") for c in stream.chunks for choice in c["choices"]
    ]
    assert "".join(filter(None, texts)) == "aaaaa"
    assert api.server.is_idle


async def test_the_log_of_a_fault_has_its_traceback(api, caplog):
    cannot_load(api, RuntimeError("planted"))
    with caplog.at_level(logging.ERROR):
        await api.refused(CHAT, chat_body(), 500)
    assert "Traceback" in caplog.text
    assert isinstance(of_exception(RuntimeError("x")), ApiError)
