"""One worker process as the service sees it: its start, its frames, its death. asyncio, one event loop."""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

from pinyon.engine import protocol
from pinyon.engine.config import EngineConfig, EngineInfo
from pinyon.engine.errors import (
    DoesNotFitError,
    EngineCrashedError,
    EngineError,
    EngineStartError,
    EngineStuckError,
    InvalidRequestError,
    ModelLoadError,
    ProtocolError,
)
from pinyon.engine.events import Event, Failed, Finished
from pinyon.engine.protocol import FromWorker, Reply, ToWorker
from pinyon.engine.request import GenerateRequest

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "pinyon.engine.worker")
DEATH_GRACE_S: Final = 1.0
CLOSE_GRACE_S: Final = 2.0
PING_S: Final = 2.0
IDLE_PING_S: Final = 10.0
"""How often the engine is asked for a sign of life while it has something to do, and while it has not."""
LATE_S: Final = 5.0
"""Without one for so long it counts as stuck."""
LOG_TAIL_BYTES: Final = 4096
PASSED_ENVIRONMENT: Final = frozenset(
    "PATH HOME USERPROFILE SYSTEMROOT TEMP TMP TMPDIR LANG LC_ALL LC_CTYPE "
    "PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH DYLD_LIBRARY_PATH LLAMA_CPP_LIB_PATH "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES "
    "HSA_OVERRIDE_GFX_VERSION VK_ICD_FILENAMES VK_DRIVER_FILES".split()
)
PASSED_PREFIXES: Final = ("OMP_", "GOMP_", "KMP_", "GGML_", "CUDA_")


def worker_environment() -> dict[str, str]:
    """Return what a worker may see: an allow-list, so that no token or password of the user reaches native code."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in PASSED_ENVIRONMENT or name.startswith(PASSED_PREFIXES)
    }
    # Without this an abort attaches a debugger before the process dies.
    return {**passed, "GGML_NO_BACKTRACE": "1"}


def _fresh_log(path: Path) -> BinaryIO:
    """Open a log file for appending and reading; the one before it is kept beside it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(".old.log"))
    path.touch(mode=0o600)
    return path.open("a+b")


class WorkerProcess(asyncio.SubprocessProtocol):
    """One worker process and what is open with it. Dies once; then every stream has had its last event.

    `ready` gives the loaded model's info, or ModelLoadError, or the EngineCrashedError of a death before that; `dead` is
    done after the death. `why_no_disk` says why no KV is kept on disk, where that was asked for and failed. `on_death` is called when a worker dies that was ready. Frames are taken as they arrive,
    without a task between pipe and stream: on a small machine every wake-up takes time from the computation.
    """

    def __init__(
        self,
        log: BinaryIO,
        answer_within_s: float,
        on_progress: Callable[[float], None],
        on_death: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[EngineInfo] = loop.create_future()
        self.dead: asyncio.Future[None] = loop.create_future()
        self.was_used = False
        self.why_no_disk = ""
        self._log = log
        self._answer_within_s = answer_within_s
        self._fault = ""
        self._pinged_at: float | None = None
        self._is_given_up = False
        self._on_progress = on_progress
        self._on_death = on_death
        self._frames = protocol.FrameBuffer()
        self._streams: dict[str, asyncio.Queue[Event]] = {}
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._call_numbers = itertools.count()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        config: EngineConfig,
        log_path: Path,
        on_progress: Callable[[float], None],
        on_death: Callable[[], None],
    ) -> Self:
        """Start a worker that loads a model.

        Raises:
            EngineStartError: the operating system does not let it.
        """
        try:
            log = _fresh_log(log_path)
            _, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(log, config.answer_within_s, on_progress, on_death),
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=worker_environment(),
                start_new_session=True,  # Ctrl+C in the terminal is the service's to handle
            )
        except OSError as error:
            raise EngineStartError(f"the engine process cannot be started: {error}") from error
        process.post(protocol.Start(protocol.VERSION, config))
        return process

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    def post(self, message: ToWorker) -> None:
        """Send without waiting. To a worker that is dying this does nothing: its death ends every stream and call.

        Raises:
            EngineCrashedError: it is dead, and all of that has happened.
        """
        if self.dead.done():
            raise EngineCrashedError("the engine process has just died")
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport), "spawned with pipes"
        pipe.write(protocol.encode_frame(message))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        if request.id in self._streams:
            raise InvalidRequestError(f"a request with the id {request.id!r} is still running")
        self.post(protocol.Generate(request))
        self.was_used = True
        stream = self._streams[request.id] = asyncio.Queue()
        ended = False
        try:
            while not ended:
                event = await stream.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            if not ended and not self.dead.done():  # the id stays taken until the worker has answered the cancel
                self.post(protocol.Cancel(request.id))

    async def call(self, make: Callable[[int], ToWorker]) -> Reply:
        """Send the message that `make` builds for a call number; return its reply. Raises EngineCrashedError."""
        self.was_used = True
        return await self._reply_to(make)

    async def _reply_to(self, make: Callable[[int], ToWorker]) -> Reply:
        number = next(self._call_numbers)
        self.post(make(number))
        self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            return await self._calls[number]
        finally:
            del self._calls[number]

    def kill(self) -> None:
        if not self.dead.done():
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    async def close(self) -> None:
        """Ask the process to end, then make it."""
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        try:
            await asyncio.wait_for(asyncio.shield(self.dead), CLOSE_GRACE_S)
        except TimeoutError:
            self.kill()
            await self.dead

    @property
    def is_stuck(self) -> bool:
        """Whether a ready engine owes a sign of life."""
        return self._pinged_at is not None and asyncio.get_running_loop().time() - self._pinged_at > LATE_S

    async def _watch(self) -> None:
        """Ask the engine for signs of life, between steps, and rarely while there is nothing to do; kill it if none comes for so long."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(EngineError):
            await asyncio.shield(self.ready)
            while True:
                await self._await_work()
                self._pinged_at = loop.time()
                if not await self._answers():
                    self._fault = f"it gave no sign of life for {loop.time() - self._pinged_at:.0f} s; "
                    self._is_given_up = True
                    self.kill()
                    return
                self._pinged_at = None

    async def _answers(self) -> bool:
        """Whether the engine gives a sign of life in time. Raises EngineError where it has died."""
        ping = asyncio.ensure_future(self._reply_to(protocol.Ping))
        try:
            # Perhaps it is this process that stood still, and the answer is here already: so it is looked for again.
            for limit_s in (self._answer_within_s, PING_S):
                if (await asyncio.wait({ping}, timeout=limit_s))[0]:
                    await ping
                    return True
            return False
        finally:
            ping.cancel()

    async def _await_work(self) -> None:
        """Return in a while, in a longer one if nothing comes to do."""
        for _ in range(round(IDLE_PING_S / PING_S)):
            await asyncio.sleep(PING_S)
            if self._streams or self._calls:
                return

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport), "made by subprocess_exec"
        self._transport = transport
        pipe = transport.get_pipe_transport(1)
        assert pipe is not None, "spawned with pipes"
        pipe.set_protocol(_AtOnce(pipe.get_protocol(), self.pipe_data_received))
        self._watching = asyncio.create_task(self._watch())

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                self._take(protocol.decode_from_worker(payload))
        except ProtocolError as error:
            self._fault = f"{error}; "
            self._fail_load(error)
            self.kill()

    def pipe_connection_lost(self, fd: int, _error: Exception | None) -> None:
        if fd == 1:
            # A worker that cannot speak is of no use. One that is dying gets the time to do so: a kill now would take
            # its exit status from asyncio.
            asyncio.get_running_loop().call_later(DEATH_GRACE_S, self.kill)

    def connection_lost(self, _error: Exception | None) -> None:
        self.dead.set_result(None)
        self._watching.cancel()
        died = EngineStuckError if self._is_given_up else EngineCrashedError
        error = died(f"the engine process died: {self._cause()}")
        if self.ready.done() and self.ready.exception() is None:
            self._on_death()
        self._fail_load(error)
        for request_id in list(self._streams):
            self._deliver(request_id, error.as_event())
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)
        self._transport.close()

    def _take(self, message: FromWorker) -> None:
        match message:
            case protocol.Events(events):
                for request_id, event in events:
                    self._deliver(request_id, event)
            case (
                protocol.TokenizeReply()
                | protocol.DetokenizeReply()
                | protocol.ForgetReply()
                | protocol.ResizeReply()
                | protocol.EstimateReply()
                | protocol.MetersReply()
                | protocol.Pong()
                | protocol.CallFailed()
            ):
                if (call := self._calls.get(message.call)) is not None and not call.done():
                    call.set_result(message)
            case protocol.Loading(fraction):
                self._on_progress(fraction)
            case protocol.Ready(version, info) if version == protocol.VERSION and not self.ready.done():
                self.ready.set_result(info)
            case protocol.NoDisk(reason):
                self.why_no_disk = reason
            case protocol.LoadFailed(kind, text):
                self._fail_load(DoesNotFitError(text) if kind is DoesNotFitError.kind else ModelLoadError(text))
            case _:
                raise ProtocolError(f"the worker sent a {type(message).__name__} that nobody waits for")

    def _deliver(self, request_id: str, event: Event) -> None:
        if request_id not in self._streams:
            raise ProtocolError(f"the worker sent an event of {request_id!r}, which is not running")
        self._streams[request_id].put_nowait(event)
        if isinstance(event, Finished | Failed):
            del self._streams[request_id]

    def _fail_load(self, error: EngineError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    def _cause(self) -> str:
        """Say how the process ended and what it said last. Must not fail: every stream waits for its last event."""
        return f"{self._fault}{exit_text(self._transport.get_returncode())}; its log {_last_line(self._log)}"


class _AtOnce(asyncio.Protocol):
    """Hands on what a pipe of a subprocess brings; asyncio's own protocol does so one turn of its loop later."""

    def __init__(self, usual: asyncio.BaseProtocol, take: Callable[[int, bytes], None]) -> None:
        self._usual = usual
        self._take = take

    def data_received(self, data: bytes) -> None:
        self._take(1, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._usual.connection_lost(error)


def _last_line(log: BinaryIO) -> str:
    """Close a log; return what it ends with, as the end of a sentence."""
    try:
        with log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return f"cannot be read: {error}"
    return "ends with: " + next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def exit_text(status: int | None) -> str:
    """Return how a process ended, from its exit status: negative ones are signals."""
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-status}"
