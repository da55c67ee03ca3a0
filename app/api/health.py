"""GET /health: whether the server lives, and whether it can answer."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pinyon.app.api.door import Door, door_of
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.engine.client import EngineState

router = APIRouter()


class EngineHealth(msgspec.Struct, frozen=True):
    state: EngineState
    model: str | None
    running: int
    waiting: int


class ModelHealth(msgspec.Struct, frozen=True):
    """`progress` is the share of the weights that is loaded, 0 to 1; None once the model is."""

    model: str
    state: EngineState
    running: int
    waiting: int
    progress: float | None = None


class Health(msgspec.Struct, frozen=True):
    """`live`: the server answers. `ready`: there is a model that takes a request now, without being loaded first.

    `engine` is the last used one, with the answers of all; `models` are those in memory, and before them those that are being loaded.
    """

    status: str
    live: bool
    ready: bool
    engine: EngineHealth
    models: list[ModelHealth]


@router.get("/health")
async def health(request: Request) -> Response:
    """Tell how the server is; 200 as long as it lives."""
    return JsonAnswer(_health(door_of(request)))


@router.get("/health/ready", responses={503: {"description": "Not ready."}})
async def ready(request: Request) -> Response:
    """The same, with 503 until the server is ready: for whoever waits for the model."""
    found = _health(door_of(request))
    return JsonAnswer(found, 200 if found.ready else 503)


def _health(door: Door) -> Health:
    state = door.engine_state
    is_ready = any(model.state is EngineState.READY for model in door.service.models) and not door.is_draining
    status = "shutting_down" if door.is_draining else "ok" if is_ready else str(state)
    coming = [ModelHealth(slot.name, EngineState.LOADING, 0, 0, slot.loaded_share) for slot in door.service.loading]
    models = coming + [ModelHealth(model.name, model.state, *door.answers_of(model)) for model in door.service.models]
    last_used = next((model.model for model in models if model.state is state), None)
    engine = EngineHealth(state, last_used, door.running, door.waiting)
    return Health(status, live=True, ready=is_ready, engine=engine, models=models)
