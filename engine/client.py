"""One model's engine as the service sees it: a worker that is started, restarted after a crash, and given up after two."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine import protocol
from pinyon.engine.config import EngineConfig, EngineInfo
from pinyon.engine.errors import (
    EngineCrashedError,
    EngineError,
    ModelQuarantinedError,
    ProtocolError,
    error_of,
)
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Removed
from pinyon.engine.meters import Meters
from pinyon.engine.protocol import Reply
from pinyon.engine.request import GenerateRequest, Text, Tokens
from pinyon.engine.worker_process import WORKER_COMMAND, WorkerProcess

LOAD_ATTEMPTS: Final = 2


class EngineState(StrEnum):
    """STOPPED has nothing loaded, and loads when asked; a crash leads back to LOADING; STUCK gives no sign of life; FAILED could not load."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    STUCK = "stuck"
    FAILED = "failed"


class EngineClient:
    """One model's engine as the service sees it: started once, alive again after a crash, until it is closed.

    A worker that dies while loading is tried once more; after that the model is quarantined and every request fails
    with ModelQuarantinedError's message. A request that a crash interrupts fails; it is not tried again.
    """

    def __init__(self, config: EngineConfig, log_path: Path, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._config = config
        self._log_path = log_path
        self._command = command
        self._on_progress: Callable[[float], None] = lambda _fraction: None
        self._live: asyncio.Task[tuple[WorkerProcess, EngineInfo]] | None = None
        self._process: WorkerProcess | None = None
        self._closed = False

    @property
    def state(self) -> EngineState:
        if self._closed or self._live is None:
            return EngineState.STOPPED
        if not self._live.done():
            return EngineState.LOADING
        if self._live.exception():
            return EngineState.FAILED
        return EngineState.STUCK if self._process is not None and self._process.is_stuck else EngineState.READY

    async def start(self, on_progress: Callable[[float], None] | None = None) -> EngineInfo:
        """Load the model; `on_progress` is told the loaded fraction.

        Raises:
            ModelLoadError: it cannot be loaded; ModelQuarantinedError when the worker died of it twice.
        """
        self._on_progress = on_progress or self._on_progress
        try:
            return await self.info()
        finally:
            self._on_progress = lambda _fraction: None  # a restart has nobody to tell

    async def info(self) -> EngineInfo:
        """Return what the engine says about itself, after a restart if one is under way. Raises EngineError."""
        return (await self._ready())[1]

    async def pid(self) -> int:
        """Return the worker's process id. Raises EngineError."""
        return (await self._ready())[0].pid

    @property
    def running_pid(self) -> int | None:
        """The worker's process id, None where there is none now."""
        return None if self._process is None or self._process.dead.done() else self._process.pid

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """Yield the request's events; the last one is Finished or Failed. Closing the iterator early cancels it."""
        try:
            process, _ = await self._ready()
            async with contextlib.aclosing(process.generate(request)) as events:
                async for event in events:
                    yield event
        except EngineError as error:
            yield error.as_event()

    async def cancel(self, request_id: str) -> None:
        """End a request; its stream gets Finished with the reason cancelled. One that has ended is left alone.

        A worker that is not ready knows no request, and is not waited for.
        """
        if self.state in {EngineState.READY, EngineState.STUCK} and self._process is not None:
            with contextlib.suppress(EngineError):  # it has died just now, and the request with it
                self._process.post(protocol.Cancel(request_id))

    async def tokenize(self, prompt: Sequence[Text | Tokens]) -> tuple[int, ...]:
        """Return the token ids that a prompt has. Raises EngineError."""
        process, _ = await self._ready()
        reply = await process.call(lambda number: protocol.Tokenize(number, tuple(prompt)))
        if isinstance(reply, protocol.TokenizeReply):
            return reply.ids
        raise _call_error(reply)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the visible text of token ids. Raises EngineError."""
        process, _ = await self._ready()
        reply = await process.call(lambda number: protocol.Detokenize(number, tuple(ids)))
        if isinstance(reply, protocol.DetokenizeReply):
            return reply.text
        raise _call_error(reply)

    async def forget(self, conversation: str | None = None, before_s: float = 0.0) -> Removed:
        """Forget what only this conversation left; without one, everything that was kept before a time (seconds since 1970).

        Returns when it has gone from the disk, too. Where there is no worker there is nothing to forget.

        Raises:
            EngineCrashedError: the worker died meanwhile.
            EngineError: files cannot be deleted.
        """
        if self.state not in {EngineState.LOADING, EngineState.READY, EngineState.STUCK}:
            return Removed()
        process, _ = await self._ready()
        reply = await process.call(lambda number: protocol.Forget(number, conversation, before_s))
        if isinstance(reply, protocol.ForgetReply):
            return Removed(reply.blocks, reply.size_bytes)
        raise _call_error(reply)

    async def resize_kv(self, ram_cap_bytes: int, disk_cap_bytes: int, unused_bytes: int) -> None:
        """Have the worker, and those that are started after it, keep to other caps for KV beside the context; returns when it does.

        Of disk it takes more only as far as `unused_bytes`, which no engine uses, leave room.

        Raises:
            EngineCrashedError: the worker died meanwhile.
            EngineError: files cannot be deleted.
        """
        self._config = msgspec.structs.replace(
            self._config, kv_ram_cap_bytes=ram_cap_bytes, kv_disk_cap_bytes=disk_cap_bytes
        )
        if self.state not in {EngineState.LOADING, EngineState.READY, EngineState.STUCK}:
            return
        process, _ = await self._ready()
        reply = await process.call(
            lambda number: protocol.ResizeKv(number, ram_cap_bytes, disk_cap_bytes, unused_bytes)
        )
        if not isinstance(reply, protocol.ResizeReply):
            raise _call_error(reply)

    async def estimate(self, request: GenerateRequest) -> Estimate:
        """Return what a request would find in the cache. Raises EngineError, as the request would fail."""
        process, _ = await self._ready()
        reply = await process.call(lambda number: protocol.MakeEstimate(number, request))
        if isinstance(reply, protocol.EstimateReply):
            return reply.estimate
        raise _call_error(reply)

    async def meters(self) -> Meters | None:
        """Return what the engine holds and does now; None while nothing is loaded."""
        if self.state is not EngineState.READY or self._process is None:
            return None
        with contextlib.suppress(EngineCrashedError):
            reply = await self._process.call(protocol.ReadMeters)
            if isinstance(reply, protocol.MetersReply):
                return reply.meters
            raise _call_error(reply)
        return None

    @property
    def why_no_disk(self) -> str:
        """Why the worker keeps no KV on disk although it should; empty where it does, or should not."""
        return "" if self._process is None else self._process.why_no_disk

    async def close(self) -> None:
        """End the worker; open requests fail."""
        self._closed = True
        if self._process is not None:
            await self._process.close()
        if self._live is None:
            return
        with contextlib.suppress(EngineError):
            await self._live  # a load under way sees that its worker died, and that it shall not be tried again

    async def _ready(self) -> tuple[WorkerProcess, EngineInfo]:
        if self._closed:
            raise EngineCrashedError("the engine was closed")
        if self._live is None:
            self._live = asyncio.create_task(self._load())
        live = self._live
        try:
            return await asyncio.shield(live)  # a caller that gives up must not stop the load for others
        except ModelQuarantinedError:
            raise
        except EngineError:
            if self._live is live:
                self._live = None  # the next request tries again
            raise

    async def _load(self) -> tuple[WorkerProcess, EngineInfo]:
        for attempt in range(1, LOAD_ATTEMPTS + 1):
            process = await WorkerProcess.spawn(
                self._command, self._config, self._log_path, self._on_progress, self._restart
            )
            self._process = process
            try:
                if self._closed:
                    await process.close()
                info = await process.ready
            except EngineCrashedError as error:
                if self._closed:
                    raise
                if attempt == LOAD_ATTEMPTS:
                    path = os.fsdecode(self._config.model_path)
                    raise ModelQuarantinedError(
                        f"{path} is quarantined: the engine process died {attempt} times while loading it; {error}"
                    ) from error
            except BaseException:
                process.kill()
                await process.dead
                raise
            else:
                return process, info
        raise AssertionError("every attempt returns, raises or is followed by another")

    def _restart(self) -> None:
        """Replace a worker that was ready. One that nobody has used may die of nothing: the next request starts it."""
        assert self._process is not None, "it has just died"
        if not self._closed:
            self._live = asyncio.create_task(self._load()) if self._process.was_used else None


def _call_error(reply: Reply) -> EngineError:
    if isinstance(reply, protocol.CallFailed):
        return error_of(reply.failed)
    return ProtocolError(f"the worker answered a call with {type(reply).__name__}")
