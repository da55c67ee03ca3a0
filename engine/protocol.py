"""Frames between the service and a worker: a 4-byte little-endian length, then one msgpack message. Never pickle.

The service's first frame is Start; the worker answers with Loading frames, then Ready or LoadFailed.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final, TypeAlias

import msgspec

from pinyon.engine.config import EngineConfig, EngineInfo
from pinyon.engine.errors import InvalidRequestError, ProtocolError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Failed, FailureKind
from pinyon.engine.meters import Meters
from pinyon.engine.request import GenerateRequest, Text, Tokens

VERSION: Final = 6
HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 << 20


class Start(msgspec.Struct, frozen=True, tag="start"):
    version: int
    config: EngineConfig


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    request_id: str


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    call: int
    prompt: tuple[Text | Tokens, ...]


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    call: int
    ids: tuple[int, ...]


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Forget what only this conversation left; without one, everything that was kept before a time (seconds since 1970)."""

    call: int
    conversation: str | None = None
    before_s: float = 0.0


class ResizeKv(msgspec.Struct, frozen=True, tag="resize"):
    """Keep to other caps for KV beside the context; of disk more only as far as `unused_bytes`, which no engine uses, leave room."""

    call: int
    ram_cap_bytes: int
    disk_cap_bytes: int
    unused_bytes: int


class MakeEstimate(msgspec.Struct, frozen=True, tag="estimate"):
    """Tell what a request would find in the cache, without starting it."""

    call: int
    request: GenerateRequest


class ReadMeters(msgspec.Struct, frozen=True, tag="meters"):
    call: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Give a sign of life, from the thread that computes."""

    call: int


ToWorker: TypeAlias = (
    Start | Generate | Cancel | Tokenize | Detokenize | Forget | ResizeKv | MakeEstimate | ReadMeters | Ping
)


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """`fraction` of the weights is loaded, 0 to 1."""

    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    version: int
    info: EngineInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    kind: FailureKind
    message: str


class NoDisk(msgspec.Struct, frozen=True, tag="no_disk"):
    """Why no KV is kept on disk, though it was asked for. Comes after Ready, if it comes."""

    reason: str


class Events(msgspec.Struct, frozen=True, tag="events"):
    """(request id, event) pairs of one step, in order."""

    events: tuple[tuple[str, Event], ...]


class TokenizeReply(msgspec.Struct, frozen=True, tag="tokens"):
    call: int
    ids: tuple[int, ...]


class DetokenizeReply(msgspec.Struct, frozen=True, tag="text"):
    call: int
    text: str


class ForgetReply(msgspec.Struct, frozen=True, tag="forgotten"):
    """It is gone, from the disk as well: so many blocks, of so many bytes together."""

    call: int
    blocks: int
    size_bytes: int


class ResizeReply(msgspec.Struct, frozen=True, tag="resized"):
    """It keeps to the caps, on disk as well."""

    call: int


class EstimateReply(msgspec.Struct, frozen=True, tag="estimated"):
    call: int
    estimate: Estimate


class MetersReply(msgspec.Struct, frozen=True, tag="measured"):
    call: int
    meters: Meters


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    call: int


class CallFailed(msgspec.Struct, frozen=True, tag="call_failed"):
    call: int
    failed: Failed


Reply: TypeAlias = (
    TokenizeReply | DetokenizeReply | ForgetReply | ResizeReply | EstimateReply | MetersReply | Pong | CallFailed
)
"""What ends a call."""
FromWorker: TypeAlias = Loading | Ready | LoadFailed | NoDisk | Events | Reply

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return header and payload.

    Raises:
        InvalidRequestError: text is not Unicode, a number has more than 64 bits, or the message is too large.
    """
    try:
        payload = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"text has half a surrogate pair at {error.start}: it is not Unicode") from error
    except OverflowError as error:
        raise InvalidRequestError("a number has more than 64 bits") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise InvalidRequestError(f"the message has {len(payload):,} bytes, the limit is {MAX_FRAME_BYTES:,}")
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def payload_bytes(header: bytes | bytearray) -> int:
    """Return the length that a frame's header claims.

    Raises:
        ProtocolError: it is over the limit.
    """
    size = int.from_bytes(header, "little")
    if size > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame claims {size:,} bytes; the limit is {MAX_FRAME_BYTES:,}")
    return size


def decode_to_worker(payload: bytes) -> ToWorker:
    """Raises ProtocolError for anything that is not a message to a worker."""
    try:
        return _to_worker.decode(payload)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a frame to the worker is malformed: {error}") from error


def decode_from_worker(payload: bytes) -> FromWorker:
    """Raises ProtocolError for anything that is not a message from a worker."""
    try:
        return _from_worker.decode(payload)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a frame from the worker is malformed: {error}") from error


class FrameBuffer:
    """Cuts a stream that arrives in pieces into the payloads of its frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that are complete now.

        Raises:
            ProtocolError: a frame is larger than one may be.
        """
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            end = HEADER_BYTES + payload_bytes(self._data[:HEADER_BYTES])
            if len(self._data) < end:
                return
            payload = bytes(self._data[HEADER_BYTES:end])
            del self._data[:end]
            yield payload


def read_payload(stream: BinaryIO) -> bytes | None:
    """Read one frame from a blocking stream; None at its end.

    Raises:
        ProtocolError: the frame is too large, or the stream ends inside it.
    """
    header = stream.read(HEADER_BYTES)
    if not header:
        return None
    size = payload_bytes(header)
    payload = stream.read(size)
    if len(header) < HEADER_BYTES or len(payload) < size:
        raise ProtocolError(f"the stream ended inside a frame: {len(payload):,} of {size:,} bytes")
    return payload
