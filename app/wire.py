"""What an attached command and the server say to each other on the routes /pinyon/*.

Bodies are engine.protocol's frames of msgpack: JSON has no NaN, so it would turn a temperature that the engine refuses into
the default. An answer is frames as they come, and an error in it is told as the exception that a command without a server
would have met: its text, and its exit code, are the same.
"""

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from pinyon.app import errors
from pinyon.app.ask import Ask
from pinyon.engine import errors as engine_errors
from pinyon.engine.config import Buffer
from pinyon.engine.errors import InvalidRequestError, ProtocolError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event
from pinyon.engine.meters import Meters
from pinyon.engine.protocol import FrameBuffer, Loading, encode_frame
from pinyon.models import errors as model_errors
from pinyon.models.memory.fit import Budget
from pinyon.models.memory.kv import KvType

if TYPE_CHECKING:
    from pinyon.models.memory.fit import Fit

_TOLD: Final = {
    kind.__name__: kind
    for kind in (
        errors.AppError,
        errors.ModelSlotError,
        errors.BusyError,
        errors.NoRoomError,
        errors.ShuttingDownError,
        errors.ServerError,
        engine_errors.InvalidRequestError,
        engine_errors.ModelLoadError,
        engine_errors.DoesNotFitError,
        engine_errors.EngineCrashedError,
        engine_errors.EngineError,
        model_errors.ModelNotFoundError,
        model_errors.ModelFileError,
        model_errors.TemplateMissingError,
        model_errors.TemplateRejectedError,
        model_errors.TemplateTooExpensiveError,
        model_errors.TemplateError,
        model_errors.ModelError,
    )
}


class Identity(msgspec.Struct, frozen=True):
    """The answer to a challenge."""

    proof: str


class Taken(msgspec.Struct, frozen=True):
    """The memory that llama.cpp has taken for a model by its log, in bytes, to the nearest 0.01 MiB a buffer: weights with pages of
    the file, keys, values and states, computing and outputs.
    """

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int

    @classmethod
    def of(cls, buffers: tuple[Buffer, ...]) -> "Taken | None":
        """Return the sums; None where the log told of nothing."""

        def taken_for(*purposes: str) -> int:
            return sum(buffer.size_bytes for buffer in buffers if buffer.purpose in purposes)

        return cls(taken_for("model"), taken_for("KV", "RS"), taken_for("compute", "output")) if buffers else None


class Memory(msgspec.Struct, frozen=True):
    """The memory that a model was planned to take, in bytes: its weights with `mapped_bytes` that are pages of its file, all in all
    `ram_bytes` of RAM and `gpu_bytes` of GPUs; and how it was made to fit, in words. `taken` is what it took, None where llama.cpp did not say.
    """

    kv_type: str
    weights_bytes: int
    mapped_bytes: int
    kv_bytes: int
    compute_bytes: int
    cache_bytes: int
    ram_bytes: int
    gpu_bytes: dict[str, int]
    compromises: tuple[str, ...]
    taken: Taken | None = None

    @classmethod
    def of(
        cls, fit: "Fit", cache_bytes: int, compromises: tuple[str, ...], buffers: tuple[Buffer, ...] = ()
    ) -> "Memory":
        devices = fit.plan.devices
        return cls(
            kv_type=fit.plan.choice.kv.type.value,
            weights_bytes=sum(need.weights_bytes for need in devices),
            mapped_bytes=sum(need.mapped_bytes for need in devices),
            kv_bytes=sum(need.kv_bytes for need in devices),
            compute_bytes=sum(need.compute_bytes + need.output_bytes for need in devices),
            cache_bytes=cache_bytes,
            ram_bytes=fit.plan.ram.total_bytes,
            gpu_bytes={need.device: need.total_bytes for need in devices[1:]},
            compromises=compromises,
            taken=Taken.of(buffers),
        )


class ModelStatus(msgspec.Struct, frozen=True):
    """A model in a server's memory, or on its way there. `meters` is None where its engine is too busy to tell. `progress` is the share of
    the weights that is loaded, 0 to 1; None once the model is.
    """

    name: str
    path: bytes
    engine_state: str
    context_tokens: int
    threads: int
    running: int
    waiting: int
    memory: Memory
    meters: Meters | None = None
    progress: float | None = None


class Status(msgspec.Struct, frozen=True):
    """What a server is doing, and for how many seconds it has been there; its models, those that are being loaded and then the last used first.

    `why_no_disk` says why no KV is kept on disk; empty where it is.
    """

    pid: int
    version: str
    uptime_s: float
    engine_state: str
    models: tuple[ModelStatus, ...]
    running: int
    waiting: int
    is_draining: bool
    why_no_disk: str


class Room(msgspec.Struct, frozen=True):
    """What the next model may take: `most` once the `models` that are in memory have left for it, `beside` them what is free now."""

    most: Budget
    beside: Budget
    models: tuple[str, ...]


class Load(msgspec.Struct, frozen=True):
    """`path` is a model file's, in bytes; None leaves the choice to the server. `context_tokens` is the least that will do,
    `kv_type` the one that is wanted, None any.

    One that `is_forced` is loaded although it does not fit into memory.
    """

    path: bytes | None
    context_tokens: int | None
    is_forced: bool = False
    kv_type: KvType | None = None


class Generate(msgspec.Struct, frozen=True):
    """An ask, to be answered or estimated. `path` is a loaded model's, as Loaded gives it."""

    path: bytes
    ask: Ask


class Cancel(msgspec.Struct, frozen=True):
    ask_id: str


class Clear(msgspec.Struct, frozen=True):
    """Forget what is cached of the model at a path, None for all, and older than so many seconds."""

    path: bytes | None
    older_than_s: float


class Forget(msgspec.Struct, frozen=True):
    """Forget what only this conversation left in the cache."""

    conversation: str


class Count(msgspec.Struct, frozen=True):
    """Count the tokens of a piece of text. `path` is a loaded model's, as Loaded gives it."""

    path: bytes
    text: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """`digest` is the SHA-256 of the weights in hex, empty while it is unknown; `compromises` are Memory's."""

    path: bytes
    name: str
    context_tokens: int
    threads: int
    why_no_disk: str
    digest: str = ""
    compromises: tuple[str, ...] = ()
    kv_type: str = ""


class ReadMeters(msgspec.Struct, frozen=True):
    """Tell what the engine of the model at a path holds and does."""

    path: bytes


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    tokens: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An exception, by the name of its class."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> "Refused":
        """Tell an exception by the nearest class that the other side can make from its text alone."""
        known = (kind.__name__ for kind in type(error).__mro__ if _TOLD.get(kind.__name__) is kind)
        return cls(next(known, errors.ServerError.__name__), str(error))

    def error(self) -> Exception:
        return _TOLD.get(self.kind, errors.ServerError)(self.message)


ToServer: TypeAlias = Load | Generate | Cancel | Clear | Forget | Count | ReadMeters
FromServer: TypeAlias = Loading | Loaded | Refused | Estimate | Counted | Event

_Body = TypeVar("_Body", Load, Generate, Cancel, Clear, Forget, Count, ReadMeters)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def encode(message: ToServer | FromServer) -> bytes:
    """Return one frame. Raises InvalidRequestError as engine.protocol.encode_frame does."""
    return encode_frame(message)


def decode_body(body: bytes, kind: type[_Body]) -> _Body:
    """Return the one message of a request's body. Raises InvalidRequestError."""
    try:
        (payload,) = FrameBuffer().feed(body)
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, ProtocolError, msgspec.DecodeError) as error:  # the first: not one frame
        raise InvalidRequestError(f"the body is not one frame with a message of this route: {error}") from error


def decode_answer(payload: bytes) -> FromServer:
    """Return a message of the server. Raises msgspec.DecodeError."""
    return _from_server.decode(payload)
