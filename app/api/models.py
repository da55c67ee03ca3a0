"""GET /v1/models: which models are here, and how long their contexts are."""

import asyncio
from functools import lru_cache
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pinyon.app.api.door import Door, door_of
from pinyon.app.api.errors import unknown_model
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.wire import Memory
from pinyon.models.errors import ModelError
from pinyon.models.gguf_header import read_header
from pinyon.models.model_record import FileIdentity, Record

router = APIRouter()


class ModelShown(msgspec.Struct, frozen=True):
    """A model on this machine. `context_length` is the loaded context's, else the one that the model was trained for. `memory` says of a
    loaded one what it was planned to take and what it took, and what was given up so that it fits.
    """

    id: str
    object: str
    created: int
    owned_by: str
    context_length: int | None
    loaded: bool
    memory: Memory | None


class ModelList(msgspec.Struct, frozen=True):
    object: str
    data: list[ModelShown]


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """List the models of this machine."""
    door = door_of(request)
    shown = await asyncio.to_thread(lambda: [_shown(door, record) for record in _records(door)])
    return JsonAnswer(ModelList("list", shown))


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """Show one model, by its name or an alias."""
    door = door_of(request)
    records = await asyncio.to_thread(_records, door)
    found = next((record for record in records if name in {record.name, *record.aliases}), None)
    if found is None:
        raise unknown_model(name)
    shown = await asyncio.to_thread(_shown, door, found)
    return JsonAnswer(shown)


def _records(door: Door) -> list[Record]:
    records = {record.name: record for record in door.service.store.list().records}
    for loaded in door.service.models:
        records.setdefault(loaded.name, loaded.record)
    return list(records.values())


def _shown(door: Door, record: Record) -> ModelShown:
    loaded = next((model for model in door.service.models if model.name == record.name), None)
    context = _trained_context(record.path, record.checked) if loaded is None else loaded.context_tokens
    memory = None if loaded is None else loaded.memory
    created = int(record.added_at.timestamp())
    return ModelShown(record.name, "model", created, "pinyon", context, loaded is not None, memory)


@lru_cache(maxsize=256)
def _trained_context(path: Path, _identity: FileIdentity) -> int | None:
    """Return what the file says; None for a file that is gone or damaged, which stays in the list all the same."""
    try:
        return read_header(path).context_length
    except ModelError:
        return None
