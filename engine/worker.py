"""The child process that runs one model: the only process with native code. Started by `worker_process`, ended by EOF on stdin.

Five threads, joined by queues, so that none waits for another's work:
  main    reads frames
  text    checks and tokenises prompts, compiles grammars: that must not stall the step loop
  long    the same for long prompts, which take seconds in some tokenizers: they must not hold up the short ones
  engine  loads and owns the model; takes commands between steps
  disk    finds the KV that was kept on disk, which may mean to read the whole model, and ends
Each writes its own frames. A pipe that is full stops the engine, and rightly: everyone who could read has stopped.
All but main have large stacks: some tokenizers recurse once per character.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final, NamedTuple, TypeAlias

import msgspec

if sys.platform != "win32":
    import resource

from pinyon.engine import protocol
from pinyon.engine.block_store import BlockStore
from pinyon.engine.config import LONG_TEXT_CHARS, EngineConfig
from pinyon.engine.cost_file import CostFile
from pinyon.engine.engine import Emitted, Engine, Prepared, counter_at
from pinyon.engine.errors import EngineError, ProtocolError
from pinyon.engine.events import Finished, FinishReason, Timings, Usage
from pinyon.engine.file_system import FileSystem
from pinyon.engine.kv_folder import DiskTier, open_tier, resized
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.memory_use import resident_bytes
from pinyon.engine.meters import Meters
from pinyon.engine.native import NativeLog, video_memory
from pinyon.engine.protocol import (
    Cancel,
    Detokenize,
    Forget,
    FromWorker,
    Generate,
    MakeEstimate,
    NoDisk,
    Ping,
    ReadMeters,
    ResizeKv,
    Tokenize,
)
from pinyon.engine.request import GenerateRequest, text_chars, without_traces
from pinyon.engine.weights_digest import MEMORY_NAME, known_digest

NATIVE_STACK_BYTES: Final = 256 << 20
PROGRESS_STEP: Final = 0.02
NEW_DISK_WAIT_S: Final = 0.25
"""How long the first request waits for the disk of a model of which nothing can be there: it is to be read whole first."""
KNOWN_DISK_WAIT_S: Final = 3.0
"""How long it waits where blocks may be found: thousands take longer than loading a small model, and save half a minute."""
STOP_LIMIT_S: Final = 1.5
"""For storing KV at the end. The service waits a little longer."""

Refused: TypeAlias = tuple[GenerateRequest, EngineError]
"""A request with what is wrong with it."""


class _Coming(NamedTuple):
    """A request that is being prepared, and when it came (time.perf_counter)."""

    request: GenerateRequest
    came_at: float


class _Estimating(NamedTuple):
    call: int
    prepared: Prepared


class _Resized(NamedTuple):
    """What had to leave for other caps has left, unless the future has an error."""

    call: int
    settled: Future[None]


Command: TypeAlias = (
    Prepared
    | Refused
    | Cancel
    | CostFile
    | DiskTier
    | NoDisk
    | Forget
    | ResizeKv
    | _Resized
    | _Estimating
    | ReadMeters
    | Ping
    | None
)
TextWork: TypeAlias = Generate | Tokenize | Detokenize | MakeEstimate


class Worker:
    """One model's engine behind queues. `send` may be called from any thread."""

    def __init__(self, config: EngineConfig, send: Callable[[FromWorker], None]) -> None:
        self._config = config
        self._send = send
        self._texts: SimpleQueue[TextWork] = SimpleQueue()
        self._long_texts: SimpleQueue[TextWork] = SimpleQueue()
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._disk_is_settled: Future[None] = Future()
        self._stopping = threading.Event()
        self._is_safe = threading.Event()
        """Whether no KV would be lost at an end."""
        self._is_safe.set()
        # Requests between main and engine thread. A cancel may overtake its request, which is then dropped when it comes.
        self._preparing: dict[str, _Coming] = {}
        self._cancelled_early: Counter[str] = Counter()
        self._caps: ResizeKv | None = None
        self._notes_bytes: int | None = None
        """What the disk's notes may take; None where no KV is kept on disk, or not yet."""

    def receive(self, message: protocol.ToWorker) -> None:
        """Hand a message to the thread whose work it is. Called by the main thread."""
        match message:
            case Generate():
                self._preparing[message.request.id] = _Coming(message.request, time.perf_counter())
                self._queue_for(message).put(message)
            case Tokenize() | Detokenize() | MakeEstimate():
                self._queue_for(message).put(message)
            case Cancel() | ResizeKv() | ReadMeters() | Ping():
                self._commands.put(message)
            case Forget():  # also what is on disk, so that must be known first
                self._disk_is_settled.add_done_callback(lambda _settled: self._commands.put(message))
            case _:
                raise ProtocolError("the worker was started twice")

    def _queue_for(self, work: TextWork) -> "SimpleQueue[TextWork]":
        return self._long_texts if _chars(work) > LONG_TEXT_CHARS else self._texts

    def run(self) -> None:
        """Body of the engine thread: load, then commands, a step, its events, and again."""
        loaded = self._load()
        if loaded is None:
            return
        for name, texts in (("text", self._texts), ("long", self._long_texts)):
            start_thread(name, partial(self._run_texts, texts, loaded))
        self._send(protocol.Ready(protocol.VERSION, loaded.info))
        gc.freeze()  # what loading made lives as long as the process: later collections need not walk it
        if self._config.kv_folder is not None:
            start_thread("disk", partial(self._open_disk, self._config.kv_folder, loaded))
            wait([self._disk_is_settled], self._disk_wait_s(self._config.kv_folder))
        else:
            self._disk_is_settled.set_result(None)
        engine = loaded.engine
        chores_in_s: float | None = 0.0
        self._is_safe.clear()
        while not self._stopping.is_set():
            self._take_commands(loaded, wait_s=0.0 if engine.busy else chores_in_s)
            if engine.busy:
                self._send_events(engine.step())
                chores_in_s = 0.0
            else:
                chores_in_s = engine.tidy()
        engine.close()
        self._is_safe.set()

    def _disk_wait_s(self, folder: bytes) -> float:
        known = known_digest(Path(os.fsdecode(self._config.model_path)), Path(os.fsdecode(folder)) / MEMORY_NAME)
        return KNOWN_DISK_WAIT_S if known else NEW_DISK_WAIT_S

    def _open_disk(self, folder: bytes, loaded: LoadedEngine) -> None:
        """Body of a thread that ends with the disk's blocks at hand, or with a line in the log."""
        model, settings = Path(os.fsdecode(self._config.model_path)), loaded.context.kv_settings
        cap_bytes = self._config.kv_disk_cap_bytes
        try:
            tier = open_tier(Path(os.fsdecode(folder)), model, settings, cap_bytes, loaded.file_identity)
        except (OSError, sqlite3.Error) as error:
            reason = str(error).encode(errors="backslashreplace").decode()  # it may name a path that is no text
            print(f"no KV is kept on disk: {reason}", file=sys.stderr, flush=True)
            no_disk = NoDisk(reason)
            self._send(no_disk)
            self._commands.put(no_disk)
        else:
            if self._config.calibration_folder is not None:
                costs = Path(os.fsdecode(self._config.calibration_folder))
                threads = f"{self._config.threads} threads"
                self._commands.put(CostFile(costs, tier.weights.hex(), *settings, threads, files=FileSystem()))
            self._commands.put(tier)
        finally:
            self._disk_is_settled.set_result(None)

    def stop(self) -> None:
        """Have the engine store what it holds; return when that is done, or takes too long. Called by the main thread."""
        self._stopping.set()
        self._commands.put(None)  # wakes the engine
        self._is_safe.wait(STOP_LIMIT_S)

    def _load(self) -> LoadedEngine | None:
        path = Path(os.fsdecode(self._config.model_path))
        try:
            return load_engine(self._config, path, NativeLog(sys.stderr), self._report_progress())
        except EngineError as error:
            self._send(protocol.LoadFailed(error.kind, str(error)))
            return None

    def _report_progress(self) -> Callable[[float], bool]:
        reported = 0.0

        def report(fraction: float) -> bool:
            nonlocal reported
            if fraction >= reported + PROGRESS_STEP:
                reported = fraction
                self._send(protocol.Loading(fraction))
            return True

        return report

    def _run_texts(self, texts: "SimpleQueue[TextWork]", loaded: LoadedEngine) -> None:
        while True:
            message = texts.get()
            if isinstance(message, Generate):
                self._commands.put(_prepare(loaded.engine, message.request))
            else:
                self._reply(loaded, message)

    def _reply(self, loaded: LoadedEngine, message: Tokenize | Detokenize | MakeEstimate) -> None:
        try:
            if isinstance(message, MakeEstimate):
                estimating = _Estimating(message.call, loaded.engine.prepare(message.request))
                # What is on disk is to be counted: a command that asks right after the load would always be told that nothing is.
                self._disk_is_settled.add_done_callback(lambda _settled: self._commands.put(estimating))
            else:
                self._send(_answer(loaded, message))
        except EngineError as error:  # also of a reply that no frame holds
            self._send(protocol.CallFailed(message.call, error.as_event()))

    def _take_commands(self, loaded: LoadedEngine, *, wait_s: float | None) -> None:
        """Take what is there; if there is nothing, wait so long for it, with None for ever."""
        with contextlib.suppress(Empty):
            self._send_events(self._obey(loaded, self._commands.get(wait_s != 0.0, wait_s or None)))
            while True:
                self._send_events(self._obey(loaded, self._commands.get_nowait()))

    def _obey(self, loaded: LoadedEngine, command: Command) -> list[Emitted]:
        engine = loaded.engine
        match command:
            case None:
                pass
            case DiskTier() | NoDisk() | CostFile():
                self._use_found(loaded, command)
            case Forget():
                self._forget(engine, command)
            case ResizeKv(call):
                self._caps = command
                self._keep_to_caps(loaded.store)
                loaded.store.settled().add_done_callback(lambda done: self._commands.put(_Resized(call, done)))
            case _Resized(call, settled):
                loaded.store.work()  # takes note of what has been written, and lets that go, too
                self._reply_when_done(protocol.ResizeReply(call), settled)
            case _Estimating(call, prepared):
                self._send(protocol.EstimateReply(call, engine.estimate(prepared)))
            case ReadMeters(call):
                self._send(protocol.MetersReply(call, self._meters(engine)))
            case Ping(call):
                self._send(protocol.Pong(call))
            case Cancel(request_id):
                return self._cancel(engine, request_id)
            case _:
                return self._submit(engine, command)
        return []

    def _use_found(self, loaded: LoadedEngine, found: DiskTier | NoDisk | CostFile) -> None:
        match found:
            case DiskTier():
                loaded.engine.use_disk(found)
                self._notes_bytes = found.notes_bytes
                self._keep_to_caps(loaded.store)
            case NoDisk():
                loaded.engine.use_disk(None)
            case CostFile():
                loaded.engine.use_costs(found)

    def _forget(self, engine: Engine, command: Forget) -> None:
        for coming in [*self._preparing.values()]:
            if _is_meant(command, coming):
                self._preparing[coming.request.id] = coming._replace(request=without_traces(coming.request))
        if command.conversation is None:
            removed, done = engine.forget_before(command.before_s)
        else:
            removed, done = engine.forget(command.conversation)

        self._reply_when_done(protocol.ForgetReply(command.call, removed.blocks, removed.size_bytes), done)

    def _reply_when_done(self, reply: protocol.ForgetReply | protocol.ResizeReply, done: Future[None]) -> None:
        def send(done: Future[None]) -> None:
            if (error := done.exception()) is None:
                self._send(reply)
            else:
                failed = EngineError(f"not all of it could be deleted from the disk: {error}; try again")
                self._send(protocol.CallFailed(reply.call, failed.as_event()))

        done.add_done_callback(send)

    def _keep_to_caps(self, store: BlockStore) -> None:
        """Keep to the caps that were told last, on disk as soon as there is one."""
        if (caps := self._caps) is not None:
            notes_bytes = self._notes_bytes
            own_bytes = (
                0
                if notes_bytes is None
                else resized(store.disk_cap_bytes + notes_bytes, caps.disk_cap_bytes, caps.unused_bytes)
            )
            store.resize(caps.ram_cap_bytes, max(0, own_bytes - (notes_bytes or 0)))

    def _meters(self, engine: Engine) -> Meters:
        meters = engine.meters()
        preparing = sum(coming.request.n for coming in [*self._preparing.values()])
        return msgspec.structs.replace(
            meters,
            waiting=meters.waiting + preparing,
            rss_bytes=resident_bytes(),
            vram=video_memory(),
        )

    def _cancel(self, engine: Engine, request_id: str) -> list[Emitted]:
        coming = self._preparing.pop(request_id, None)
        if coming is None:
            return engine.cancel(request_id)
        self._cancelled_early[request_id] += 1
        return [(request_id, _never_started(coming.request))]

    def _submit(self, engine: Engine, command: Prepared | Refused) -> list[Emitted]:
        request = command[0]
        if request.id in self._cancelled_early:
            self._cancelled_early -= Counter([request.id])
            return []
        coming = self._preparing.pop(request.id, _Coming(request, time.perf_counter()))
        if isinstance(command, Prepared):
            return engine.submit(command._replace(request=coming.request), coming.came_at)
        return [(request.id, command[1].as_event())]

    def _send_events(self, events: list[Emitted]) -> None:
        if events:
            self._send(protocol.Events(tuple(events)))


def _is_meant(command: Forget, coming: _Coming) -> bool:
    """Whether what is to be forgotten includes what a request is going to leave."""
    if command.conversation is None:
        return coming.came_at < counter_at(command.before_s, time.perf_counter)
    return coming.request.conversation == command.conversation


def _never_started(request: GenerateRequest) -> Finished:
    return Finished((FinishReason.CANCELLED,) * request.n, Usage(0, 0), Timings(0.0, 0.0, 0.0), seed=None)


def _chars(work: TextWork) -> int:
    if isinstance(work, Detokenize):
        return 0
    return text_chars(work.prompt if isinstance(work, Tokenize) else work.request.prompt)


def _prepare(engine: Engine, request: GenerateRequest) -> Prepared | Refused:
    try:
        return engine.prepare(request)
    except EngineError as error:
        return request, error


def _answer(loaded: LoadedEngine, message: Tokenize | Detokenize) -> FromWorker:
    if isinstance(message, Tokenize):
        return protocol.TokenizeReply(message.call, tuple(loaded.engine.tokenize(message.prompt)))
    return protocol.DetokenizeReply(message.call, loaded.vocab.decode(message.ids))


def start_thread(name: str, body: Callable[[], None]) -> None:
    """Start a thread with a large stack; if its body fails, the process ends, so that the service notices."""

    def guarded() -> None:
        try:
            body()
        except BaseException:  # noqa: BLE001  whatever it was: a worker without one of its threads is dead
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threading.stack_size(NATIVE_STACK_BYTES)
    threading.Thread(target=guarded, name=name, daemon=True).start()


class FrameWriter:
    """Writes whole frames to the service, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        frame = protocol.encode_frame(message)
        with self._lock:
            self._stream.write(frame)
            self._stream.flush()


def _take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for frames alone: whatever native code prints goes where stderr goes, to the log file."""
    frames_in = os.fdopen(os.dup(0), "rb")
    frames_out = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return frames_in, frames_out


OOM_SCORE: Final = 500
"""Added to how likely Linux is to end this process when memory runs out: rather this one than the service."""


def _guard_process() -> None:
    """Die with the service, and before it where memory runs out; leave no core dump with people's prompts in it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_start(frames_in: BinaryIO) -> EngineConfig:
    payload = protocol.read_payload(frames_in)
    if payload is None:
        os._exit(0)
    start = protocol.decode_to_worker(payload)
    if not isinstance(start, protocol.Start) or start.version != protocol.VERSION:
        raise ProtocolError(f"the first frame must be Start of version {protocol.VERSION}")
    return start.config


def main() -> None:
    frames_in, frames_out = _take_over_pipes()
    _guard_process()
    worker = Worker(_read_start(frames_in), FrameWriter(frames_out).send)
    start_thread("engine", worker.run)
    while (payload := protocol.read_payload(frames_in)) is not None:
        worker.receive(protocol.decode_to_worker(payload))
    worker.stop()
    os._exit(0)  # the service has gone; native threads are not waited for


if __name__ == "__main__":
    main()
