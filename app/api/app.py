"""Puts the HTTP door together: routes, errors, the OpenAPI document."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pinyon.app.api import chat, completions, docs, health, metrics, models, private, tokens
from pinyon.app.api.door import Door
from pinyon.app.api.errors import ApiError, handle
from pinyon.app.api.metrics import DoorCollector
from pinyon.app.api.sse import ClientGoneError
from pinyon.app.errors import AppError
from pinyon.engine.errors import EngineError
from pinyon.models.errors import ModelError

_ROUTERS = (
    chat.router,
    completions.router,
    models.router,
    tokens.router,
    health.router,
    metrics.router,
    private.router,
)
_EXPECTED = (ApiError, AppError, EngineError, ModelError, ValidationError, RequestValidationError, HTTPException)
CLIENT_GONE = 499
"""nginx's status for a client that left; nobody reads it."""


def make_app(door: Door, registry: CollectorRegistry, nonce: str, *, with_docs: bool) -> FastAPI:
    """Return the application; the guard goes around it. `nonce` is what /pinyon/identity proves to know."""
    app = FastAPI(title="Pinyon", docs_url=None, redoc_url=None, openapi_url="/openapi.json" if with_docs else None)
    registry.register(DoorCollector(door))
    app.state.door, app.state.registry, app.state.nonce = door, registry, nonce
    for router in (*_ROUTERS, docs.router) if with_docs else _ROUTERS:
        app.include_router(router)
    for kind in _EXPECTED:
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(Exception, handle)
    app.add_exception_handler(ClientGoneError, _nobody_reads)
    app.openapi = lambda: docs.openapi(app)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    return app


async def _nobody_reads(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
