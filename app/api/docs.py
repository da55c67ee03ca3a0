"""GET /docs and /openapi.json: what this door takes and gives. One page without scripts or anything from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse

from pinyon.app.api.chat import ChatChunk, ChatCompletion, ChatRequest
from pinyon.app.api.completions import Completion, CompletionRequest
from pinyon.app.api.errors import ErrorAnswer
from pinyon.app.api.fields import SCHEMAS, reference
from pinyon.app.api.tokens import DetokenizedText, DetokenizeRequest, TokenizeRequest, TokenList
from pinyon.app.limits import TABLE

router = APIRouter()

BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
ANSWERS = (ErrorAnswer, ChatCompletion, ChatChunk, Completion, TokenList, DetokenizedText)

_ERROR = {
    "description": "An error.",
    "content": {"application/json": {"schema": reference(ErrorAnswer)}},
}


def openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document: FastAPI's, with the schemas of bodies and answers."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=version("pinyon"), routes=app.routes)
        _, bodies = models_json_schema([(body, "validation") for body in BODIES], ref_template=f"{SCHEMAS}{{model}}")
        _, answers = msgspec.json.schema_components(ANSWERS, ref_template=f"{SCHEMAS}{{name}}")
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for operation in (about for methods in document["paths"].values() for about in methods.values()):
            operation["responses"].pop("422", None)  # FastAPI's own; what is wrong with a request is told with 400
            operation["responses"]["default"] = _ERROR
        schemas.update(bodies["$defs"])
        schemas.update(answers)
        app.openapi_schema = document
    return app.openapi_schema


@router.get("/docs", include_in_schema=False)
async def page(request: Request) -> HTMLResponse:
    """Show the routes, the fields of their bodies, and the limits."""
    document = openapi(request.app)
    return HTMLResponse(_PAGE.format(routes="".join(_routes(document)), limits="".join(_limits())))


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about.get('description', ''))}</p>"
            body = about.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                yield f"<table><tr><th>field</th><th>takes</th></tr>{''.join(_fields(document, name))}</table>"


def _fields(document: Mapping[str, Any], name: str) -> Iterator[str]:
    schema = document["components"]["schemas"][name]
    required = schema.get("required", ())
    for field, about in schema["properties"].items():
        mark = " (required)" if field in required else ""
        yield f"<tr><td><code>{escape(field)}</code>{mark}</td><td>{escape(_takes(about))}</td></tr>"


_RANGE = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
    "maxLength": "at most",
    "maxItems": "at most",
}


def _takes(schema: Mapping[str, Any]) -> str:
    """Return a schema in words."""
    if "anyOf" in schema:
        return " or ".join(_takes(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        kind = f"array of {_takes(schema['items'])}"
    return " ".join([kind, *(f"{word} {schema[key]}" for key, word in _RANGE.items() if key in schema)])


def _limits() -> Iterator[str]:
    for limit in TABLE:
        yield f"<tr><td>{escape(limit.name)}</td><td>{escape(limit.value)}</td><td>{escape(limit.past)}</td></tr>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Pinyon</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color-scheme: light dark }}
table {{ border-collapse: collapse; margin: 0.5em 0 1.5em }} td, th {{ border: 1px solid #8886; padding: 0.2em 0.6em; text-align: left }}
</style></head><body><h1>Pinyon</h1>
<p>OpenAI's API on this machine. The whole description: <a href="/openapi.json">/openapi.json</a>.</p>
{routes}<h2>Limits</h2><table><tr><th>limit</th><th>value</th><th>past it</th></tr>{limits}</table></body></html>
"""
