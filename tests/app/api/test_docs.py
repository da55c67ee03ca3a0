"""/docs and /openapi.json: complete, sound, and without scripts."""

import re

import jsonschema
import pytest
from fake_service import NONCE, FakeModel, FakeServer, says
from http_asking import CHAT, COMPLETIONS, Api, chat_body, text_body

from pinyon.app.api.app import make_app
from pinyon.app.api.chat import ChatRequest
from pinyon.app.api.completions import CompletionRequest
from pinyon.app.api.metrics import Metrics
from pinyon.app.limits import TABLE
from pinyon.engine.cache_report import Miss


async def document_of(api):
    response = await api.get("/openapi.json")
    assert response.status_code == 200
    return response.json()


async def test_every_public_route_is_described(api):
    document = await document_of(api)
    assert set(document["paths"]) == {
        CHAT, COMPLETIONS, "/v1/models", "/v1/models/{name}", "/v1/tokenize", "/v1/detokenize",
        "/health", "/health/ready", "/metrics",
    }  # fmt: skip
    assert all(about["description"] for methods in document["paths"].values() for about in methods.values())


async def test_the_document_is_openapi_and_its_references_lead_somewhere(api):
    document = await document_of(api)
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    for reference in re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', (await api.get("/openapi.json")).text):
        assert reference in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_reasons_of_a_cache_report_are_listed(api):
    schemas = (await document_of(api))["components"]["schemas"]
    assert {*schemas["Miss"]["enum"]} == {str(miss) for miss in Miss}


@pytest.mark.parametrize(
    ("path", "body", "name", "chunk"),
    [
        (CHAT, chat_body(logprobs=True), "ChatCompletion", "ChatChunk"),
        (COMPLETIONS, text_body(logprobs=1), "Completion", "Completion"),
    ],
)
async def test_answers_are_as_the_document_says(api, path, body, name, chunk):
    document = await document_of(api)

    def check(value, kind):
        schema = {"$ref": f"#/components/schemas/{kind}", "components": document["components"]}
        jsonschema.validate(value, schema)

    check((await api.post(path, body)).json(), name)
    for event in (await api.stream(path, body)).chunks:
        check(event, chunk)
    with pytest.raises(jsonschema.ValidationError):
        check({"id": 5}, name)


async def test_each_field_is_in_the_document_and_on_the_page(api):
    document = await document_of(api)
    page = (await api.get("/docs")).text
    for model in (ChatRequest, CompletionRequest):
        fields = set(model.model_fields)
        assert set(document["components"]["schemas"][model.__name__]["properties"]) == fields
        assert all(f"<code>{field}</code>" in page for field in fields)


async def test_the_page_has_every_limit_and_says_what_is_required(api):
    page = (await api.get("/docs")).text
    assert all(limit.name in page and limit.value in page for limit in TABLE)
    assert "<code>messages</code> (required)" in page
    assert "<code>n</code></td><td>integer from 1 to 8" in page


async def test_the_page_runs_nothing_and_loads_nothing(api):
    response = await api.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<script|javascript:|\son\w+=|src=|url\(|@import|https?://", response.text, re.IGNORECASE)
    assert re.findall(r'href="([^"]*)"', response.text) == ["/openapi.json"]


async def test_without_docs_there_are_none():
    server = FakeServer(FakeModel(says("x")))
    server.app = make_app(server.door, Metrics().registry, NONCE, with_docs=False)
    api = Api(server)
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert (await api.get(path)).status_code == 404
    assert (await api.get("/health")).status_code == 200
    await api.client.aclose()
