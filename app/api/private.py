"""The routes /pinyon/*, by which this user's commands attach: who is there, and a model as if it were loaded in the command.

Who is there may be asked by anyone. All else takes the key, which only those know who can read server.json: these routes load
a file by its path.
"""

import asyncio
import contextlib
import hmac
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from pinyon.app import wire
from pinyon.app.api.door import Door, door_of, ended_early, shutting_down
from pinyon.app.api.errors import ApiError, invalid, of_exception
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.api.sse import Stream
from pinyon.app.errors import AppError, ServerError
from pinyon.app.fit import told
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.loaded_model import LoadedModel
from pinyon.app.model_slot import Slot
from pinyon.app.running import KEY_HEADER, is_challenge, key, proof
from pinyon.engine.client import EngineState
from pinyon.engine.errors import ContextOverflowError, EngineError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Failed, Finished, FinishReason
from pinyon.engine.protocol import Loading
from pinyon.models.errors import ModelError
from pinyon.models.memory.kv import KvType

router = APIRouter(prefix="/pinyon", include_in_schema=False)

PROGRESS_S: Final = 0.1
COMMAND_S: Final = 10.0
"""How long a model stays at least after a request of a command, which asks in several requests: load, count, generate."""
_STARTED: Final = time.monotonic()


@router.get("/identity")
async def identity(request: Request, challenge: str = "") -> Response:
    """Prove to be the server of server.json."""
    if not is_challenge(challenge):
        raise invalid("challenge", "challenge: 32 to 128 hex digits are needed")
    return JsonAnswer(wire.Identity(proof(_nonce(request), challenge)))


@router.get("/status")
async def status(request: Request) -> Response:
    """Tell what the server is doing."""
    door = _door(request)
    models = await asyncio.gather(*(_shown(door, model) for model in door.service.models))
    return JsonAnswer(
        wire.Status(
            pid=os.getpid(),
            version=version("pinyon"),
            uptime_s=round(time.monotonic() - _STARTED, 1),
            engine_state=door.engine_state,
            models=(*map(_coming, door.service.loading), *models),
            running=door.running,
            waiting=door.waiting,
            is_draining=door.is_draining,
            why_no_disk=door.service.why_no_disk,
        )
    )


async def _shown(door: Door, model: LoadedModel) -> wire.ModelStatus:
    running, waiting = door.answers_of(model)
    return wire.ModelStatus(
        model.name,
        os.fsencode(model.record.path),
        model.state,
        model.context_tokens,
        model.threads,
        running,
        waiting,
        model.memory,
        await model.meters(),
    )


def _coming(slot: Slot) -> wire.ModelStatus:
    return wire.ModelStatus(
        slot.name,
        os.fsencode(slot.path),
        EngineState.LOADING,
        slot.fit.context_tokens,
        slot.config.threads,
        running=0,
        waiting=0,
        memory=wire.Memory.of(slot.fit, slot.cache_bytes, told(slot.fit)),
        progress=slot.loaded_share,
    )


@router.get("/room")
async def room(request: Request) -> Response:
    """Tell what the next model may take of memory."""
    return JsonAnswer(await _door(request).service.room())


@router.post("/load")
async def load(request: Request) -> Response:
    """Load a model; answer with fractions, then Loaded or Refused."""
    door = _open_door(request)
    wanted = wire.decode_body(await request.body(), wire.Load)
    return _messages(_loading(door, wanted))


@router.post("/generate")
async def generate(request: Request) -> Response:
    """Answer with the events of an ask as they come, or with Refused."""
    door = _open_door(request)
    wanted = wire.decode_body(await request.body(), wire.Generate)
    return _messages(_events(door, wanted))


@router.post("/cancel")
async def cancel(request: Request) -> Response:
    """End an ask early."""
    door = _door(request)
    wanted = wire.decode_body(await request.body(), wire.Cancel)
    await door.cancel(wanted.ask_id)
    return Response()


@router.post("/clear")
async def clear(request: Request) -> Response:
    """Forget what is cached, also by other processes on disk. Answers go on."""
    door = _door(request)
    wanted = wire.decode_body(await request.body(), wire.Clear)
    path = None if wanted.path is None else Path(os.fsdecode(wanted.path))
    try:
        removed = await door.service.clear(path, time.time() - wanted.older_than_s)
    except (EngineError, OSError) as error:
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
    return JsonAnswer(removed)


@router.post("/forget")
async def forget(request: Request) -> Response:
    """Forget what a conversation left. Answers go on."""
    door = _door(request)
    wanted = wire.decode_body(await request.body(), wire.Forget)
    try:
        removed = await door.service.forget(wanted.conversation)
    except (EngineError, OSError, sqlite3.Error) as error:
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
    return JsonAnswer(removed)


@router.post("/meters")
async def meters(request: Request) -> Response:
    """Tell what a model's engine holds and does; null while it is not loaded."""
    door = _door(request)
    wanted = wire.decode_body(await request.body(), wire.ReadMeters)
    return JsonAnswer(await door.service.meters(Path(os.fsdecode(wanted.path))))


@router.post("/estimate")
async def estimate(request: Request) -> Response:
    """Answer with what an ask would find in the cache, or with Refused."""
    door = _open_door(request)
    wanted = wire.decode_body(await request.body(), wire.Generate)
    return _messages(_estimate(door, wanted))


@router.post("/count")
async def count(request: Request) -> Response:
    """Answer with the number of a text's tokens, or with Refused."""
    door = _open_door(request)
    wanted = wire.decode_body(await request.body(), wire.Count)
    return _messages(_count(door, wanted))


def _door(request: Request) -> Door:
    given = request.headers.get(KEY_HEADER, "")
    if not hmac.compare_digest(given.encode(), key(_nonce(request)).encode()):
        raise ApiError(HTTPStatus.FORBIDDEN, "this route is for Pinyon's own commands", "not_attached")
    return door_of(request)


def _open_door(request: Request) -> Door:
    door = _door(request)
    if door.is_draining:
        raise shutting_down()
    return door


def _nonce(request: Request) -> str:
    nonce = request.app.state.nonce
    assert isinstance(nonce, str), "make_app puts it there"
    return nonce


async def _loading(door: Door, wanted: wire.Load) -> AsyncGenerator[wire.FromServer]:
    done = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal done
        done = fraction

    loading = asyncio.ensure_future(_loaded(door, wanted, on_progress))
    try:
        while not (await asyncio.wait((loading,), timeout=PROGRESS_S))[0]:
            yield Loading(done)
        model = loading.result()
        path = os.fsencode(model.record.path)
        yield wire.Loaded(
            path,
            model.name,
            model.context_tokens,
            model.threads,
            model.why_no_disk,
            model.digest,
            model.compromises,
            model.kv_type,
        )
    finally:
        loading.cancel()


async def _loaded(door: Door, wanted: wire.Load, on_progress: Callable[[float], None]) -> LoadedModel:
    path = None if wanted.path is None else os.fsdecode(wanted.path)
    async with _using(
        door, path, wanted.context_tokens, on_progress, is_forced=wanted.is_forced, kv_type=wanted.kv_type
    ) as model:
        return model


def _using(
    door: Door,
    path: str | None,
    context_tokens: int | None = None,
    on_progress: Callable[[float], None] | None = None,
    *,
    is_forced: bool = False,
    kv_type: KvType | None = None,
) -> AbstractAsyncContextManager[LoadedModel]:
    kept = KeepAlive(max(door.keep_alive_s, COMMAND_S))
    return door.loaded(path, context_tokens, on_progress, keep_alive=kept, is_forced=is_forced, kv_type=kv_type)


async def _events(door: Door, wanted: wire.Generate) -> AsyncGenerator[Event]:
    async with (
        _using(door, os.fsdecode(wanted.path)) as model,
        contextlib.aclosing(door.events(model, wanted.ask)) as events,
    ):
        async for event in events:
            if isinstance(event, Finished) and door.is_draining and FinishReason.CANCELLED in event.reasons:
                raise ended_early()
            yield event


async def _estimate(door: Door, wanted: wire.Generate) -> AsyncGenerator[Estimate | Failed]:
    async with _using(door, os.fsdecode(wanted.path)) as model:
        try:
            yield await model.estimate(wanted.ask)
        except ContextOverflowError as error:  # whose figures are in its event
            yield error.as_event()


async def _count(door: Door, wanted: wire.Count) -> AsyncGenerator[wire.Counted | Failed]:
    async with _using(door, os.fsdecode(wanted.path)) as model:
        try:
            yield wire.Counted(await model.count(wanted.text))
        except ContextOverflowError as error:
            yield error.as_event()


def _messages(messages: AsyncGenerator[wire.FromServer]) -> Stream:
    return Stream(_frames(messages), _error_frame, messages.aclose, media_type="application/octet-stream")


async def _frames(messages: AsyncGenerator[wire.FromServer]) -> AsyncGenerator[bytes]:
    async for message in messages:
        yield wire.encode(message)


def _error_frame(error: Exception) -> bytes:
    if not isinstance(error, AppError | EngineError | ModelError):
        error = ServerError(of_exception(error).message)
    return wire.encode(wire.Refused.of(error))
