"""What an attached command and the server say to each other on the routes /pinyon/*.

Bodies are engine.protocol's frames of msgpack: JSON has no NaN, so it would turn a temperature that the engine refuses into
the default. An answer is frames as they come, and an error in it is told as the exception that a command without a server
would have met: its text, and its exit code, are the same.
"""

from typing import Final, TypeAlias, TypeVar

import msgspec

from pinyon.app import errors
from pinyon.app.ask import Ask
from pinyon.engine import errors as engine_errors
from pinyon.engine.errors import InvalidRequestError, ProtocolError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event
from pinyon.engine.protocol import FrameBuffer, Loading, encode_frame
from pinyon.models import errors as model_errors

_TOLD: Final = {
    kind.__name__: kind
    for kind in (
        errors.AppError,
        errors.ModelSlotError,
        errors.BusyError,
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


class Status(msgspec.Struct, frozen=True):
    """What a server is doing, and for how many seconds it has been there. The model's three are None until one is loaded.

    `why_no_disk` says why no KV is kept on disk; empty where it is.
    """

    pid: int
    version: str
    uptime_s: float
    engine_state: str
    model: str | None
    context_tokens: int | None
    threads: int | None
    running: int
    waiting: int
    is_draining: bool
    why_no_disk: str


class Load(msgspec.Struct, frozen=True):
    """`path` is a model file's, in bytes; None leaves the choice to the server. `context_tokens` is the least that will do."""

    path: bytes | None
    context_tokens: int | None


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
    """`digest` is the SHA-256 of the weights in hex, empty while it is unknown."""

    path: bytes
    name: str
    context_tokens: int
    threads: int
    why_no_disk: str
    digest: str = ""


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


ToServer: TypeAlias = Load | Generate | Cancel | Clear | Forget | Count
FromServer: TypeAlias = Loading | Loaded | Refused | Estimate | Counted | Event

_Body = TypeVar("_Body", Load, Generate, Cancel, Clear, Forget, Count)
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
