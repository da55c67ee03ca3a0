import contextlib
import io
import itertools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinyon.engine import protocol
from pinyon.engine.config import EngineConfig, EngineInfo
from pinyon.engine.errors import InvalidRequestError, ProtocolError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import (
    Chunk,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    PositionLogprobs,
    Progress,
    Timings,
    TokenLogprob,
    Usage,
)
from pinyon.engine.meters import Meters, Vram
from pinyon.engine.request import GenerateRequest, SamplingParams, Text, Tokens

CHOSEN = TokenLogprob(7, -0.25, b"\xf0\x9f")
REQUEST = GenerateRequest(
    "ü-1",
    (Text("<s>", special=True), Text("hi 🫠\x00\n"), Tokens((0, 2**31 - 1)), Text("")),
    SamplingParams(temperature=0.5, top_k=0, logit_bias=((3, -100.0), (4, 0.5)), seed=2**32 - 2),
    max_tokens=1,
    stop=("\n\n", "é"),
    logprobs=20,
    ignore_eos=True,
)
INFO = EngineInfo("b", 8192, 32768, 260, "<s>", "", ("<s>",), (), ("</s>",), None, SamplingParams(top_k=3), 2)
EVENTS = (
    ("a", Progress(64, 100)),
    ("b", Chunk(0, "é\ufffd", (1, 2), (PositionLogprobs(CHOSEN, (CHOSEN,)),))),
    ("b", Chunk(0, "")),
    ("a", Finished((FinishReason.LENGTH,), Usage(3, 4), Timings(0.0, 0.5, 1.5), 42)),
    ("b", Failed(FailureKind.CONTEXT_OVERFLOW, "too long", {"prompt_tokens": 9})),
)
TO_WORKER = [
    protocol.Start(1, EngineConfig(b"/models/\xff.gguf", 4)),
    protocol.Start(1, EngineConfig(b"m", 1, 4096)),
    protocol.Generate(REQUEST),
    protocol.Generate(GenerateRequest("", ())),
    protocol.Cancel("ü-1"),
    protocol.Tokenize(3, (Text("x"), Tokens((1, 2)))),
    protocol.Detokenize(2**40, (1, 2, 3)),
    protocol.Forget(4, "ü-1"),
    protocol.Forget(4, None, 1.5e9),
    protocol.ResizeKv(9, 2**33, 2**40, 3),
    protocol.MakeEstimate(5, REQUEST),
    protocol.ReadMeters(6),
    protocol.Ping(7),
]
FROM_WORKER = [
    protocol.Loading(0.5),
    protocol.Ready(1, INFO),
    protocol.LoadFailed(FailureKind.DOES_NOT_FIT, "no room"),
    protocol.Events(EVENTS),
    protocol.Events(()),
    protocol.TokenizeReply(0, (1, 2)),
    protocol.DetokenizeReply(1, "text \ufffd"),
    protocol.NoDisk("no room"),
    protocol.ForgetReply(4, 3, 2**40),
    protocol.ResizeReply(9),
    protocol.EstimateReply(5, Estimate(9, 1, 2, 3, 0.5, 1.5, is_measured=True)),
    protocol.Pong(8),
    protocol.MetersReply(6, Meters(cells=8192, rss_bytes=2**40, prefill_tokens_per_s=0.5, vram=(Vram("CUDA0", 1, 2),))),
    protocol.CallFailed(1, Failed(FailureKind.INVALID_REQUEST, "why", {"n": 1}, "field")),
]
DECODERS = [protocol.decode_to_worker, protocol.decode_from_worker]


def payloads(stream):
    return list(iter(lambda: protocol.read_payload(stream), None))


def kind(message):
    return type(message).__name__


@pytest.mark.parametrize("message", TO_WORKER, ids=kind)
def test_messages_to_the_worker_survive_the_journey(message):
    (payload,) = payloads(io.BytesIO(protocol.encode_frame(message)))
    assert protocol.decode_to_worker(payload) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=kind)
def test_messages_from_the_worker_survive_the_journey(message):
    (payload,) = payloads(io.BytesIO(protocol.encode_frame(message)))
    assert protocol.decode_from_worker(payload) == message


def test_every_message_is_covered():
    assert {type(message) for message in TO_WORKER} == set(protocol.ToWorker.__args__)
    assert {type(message) for message in FROM_WORKER} == set(protocol.FromWorker.__args__)


def test_frames_follow_each_other_without_loss():
    stream = io.BytesIO(b"".join(map(protocol.encode_frame, FROM_WORKER)))
    assert [protocol.decode_from_worker(payload) for payload in payloads(stream)] == FROM_WORKER


@pytest.mark.parametrize(
    ("messages", "decode"), [(TO_WORKER, protocol.decode_from_worker), (FROM_WORKER, protocol.decode_to_worker)]
)
def test_messages_of_the_other_direction_are_refused(messages, decode):
    for message in messages:
        with pytest.raises(ProtocolError):
            decode(protocol.encode_frame(message)[protocol.HEADER_BYTES :])


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not(monkeypatch):
    frame = protocol.encode_frame(protocol.Cancel("x" * 50))
    payload_bytes = len(frame) - protocol.HEADER_BYTES
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", payload_bytes)
    assert protocol.read_payload(io.BytesIO(frame)) == frame[protocol.HEADER_BYTES :]
    assert protocol.encode_frame(protocol.Cancel("x" * 50)) == frame
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", payload_bytes - 1)
    with pytest.raises(ProtocolError, match=f"{payload_bytes}"):
        protocol.read_payload(io.BytesIO(frame))
    with pytest.raises(InvalidRequestError, match=f"{payload_bytes}"):
        protocol.encode_frame(protocol.Cancel("x" * 50))


class RefusesToRead(io.BytesIO):
    def read(self, size=-1):
        assert size <= protocol.HEADER_BYTES, "memory was reserved for an unbelievable frame"
        return super().read(size)


@pytest.mark.parametrize("size", [2**32 - 1, (64 << 20) + 1])
def test_an_enormous_claim_is_refused_before_anything_is_read(size):
    with pytest.raises(ProtocolError, match="limit"):
        protocol.read_payload(RefusesToRead(size.to_bytes(4, "little") + b"x"))


@pytest.mark.parametrize("message", [TO_WORKER[2], FROM_WORKER[3]], ids=kind)
def test_a_stream_cut_anywhere_inside_a_frame_is_an_error(message):
    frame = protocol.encode_frame(message)
    for length in range(1, len(frame)):
        with pytest.raises(ProtocolError, match="ended inside a frame"):
            protocol.read_payload(io.BytesIO(frame[:length]))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_header_cut_short_is_an_error_even_if_it_claims_nothing(length):
    with pytest.raises(ProtocolError, match="ended inside a frame"):
        protocol.read_payload(io.BytesIO(b"\0" * length))


def test_a_stream_that_ends_between_frames_has_ended():
    assert protocol.read_payload(io.BytesIO(b"")) is None


def decoded_or_refused(decode, payload):
    try:
        return decode(payload)
    except ProtocolError:
        return None


@given(st.binary(max_size=200), st.sampled_from(DECODERS))
@example(b"\x91" * 100_000, protocol.decode_to_worker)
@example(b"\x81" * 100_000, protocol.decode_from_worker)
@example(b"\xdd\xff\xff\xff\xff", protocol.decode_from_worker)
@example(b"\xdf\xff\xff\xff\xff", protocol.decode_to_worker)
@example(msgspec.msgpack.encode({"type": "cancel", "request_id": "ab"}).replace(b"ab", b"\xff\xfe"), DECODERS[0])
@example(msgspec.msgpack.encode({"type": "cancel", "request_id": "abc"}).replace(b"abc", b"\xed\xa0\x80"), DECODERS[0])
def test_random_bytes_are_a_protocol_error_or_a_message(payload, decode):
    decoded_or_refused(decode, payload)


@given(st.sampled_from(TO_WORKER + FROM_WORKER), st.data())
def test_a_damaged_message_is_a_protocol_error_or_a_message(message, data):
    payload = bytearray(protocol.encode_frame(message)[protocol.HEADER_BYTES :])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for decode in DECODERS:
        decoded_or_refused(decode, bytes(payload))


@given(st.binary(max_size=60))
def test_random_streams_are_read_or_refused(data):
    with contextlib.suppress(ProtocolError):
        assert sum(len(payload) + protocol.HEADER_BYTES for payload in payloads(io.BytesIO(data))) == len(data)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "generate", "request": {"id": "a", "prompt": [{"type": "tokens", "ids": [1.5]}]}},
        {"type": "generate", "request": {"id": "a", "prompt": [{"type": "image", "url": "x"}]}},
        {"type": "generate", "request": {"id": "a", "prompt": [], "max_tokens": "3"}},
        {"type": "generate", "request": {"id": "a", "prompt": [], "max_tokens": True}},
        {"type": "generate", "request": {"id": "a", "prompt": [], "sampling": {"seed": 1.5}}},
        {"type": "cancel"},
        {"request_id": "a"},
        {"type": "evil", "request_id": "a"},
        [],
        None,
    ],
    ids=str,
)
def test_a_message_with_a_wrong_shape_is_refused(message):
    with pytest.raises(ProtocolError, match="malformed"):
        protocol.decode_to_worker(msgspec.msgpack.encode(message))


@pytest.mark.parametrize(
    "message",
    [
        protocol.Cancel("\ud800"),
        protocol.Tokenize(0, (Text("a\udfff"),)),
        protocol.Generate(msgspec.structs.replace(REQUEST, stop=("\udc80",))),
        protocol.DetokenizeReply(0, "\ud83e"),
    ],
    ids=kind,
)
def test_half_a_surrogate_pair_cannot_be_sent(message):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        protocol.encode_frame(message)


@pytest.mark.parametrize(
    "message",
    [
        protocol.Generate(msgspec.structs.replace(REQUEST, max_tokens=2**64)),
        protocol.Generate(msgspec.structs.replace(REQUEST, sampling=SamplingParams(seed=-(2**63) - 1))),
        protocol.Detokenize(0, (2**70,)),
    ],
    ids=kind,
)
def test_a_number_beyond_64_bits_cannot_be_sent(message):
    with pytest.raises(InvalidRequestError, match="64 bits"):
        protocol.encode_frame(message)


@given(st.lists(st.sampled_from(FROM_WORKER), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_whole_however_the_stream_is_cut(messages, sizes):
    stream = b"".join(map(protocol.encode_frame, messages))
    buffer, payloads = protocol.FrameBuffer(), []
    for size in itertools.cycle(sizes):
        payloads += buffer.feed(stream[:size])
        stream = stream[size:]
        if not stream:
            break
    assert [protocol.decode_from_worker(payload) for payload in payloads] == messages


def test_a_frame_is_held_back_until_its_last_byte():
    frame = protocol.encode_frame(protocol.Loading(0.5))
    buffer = protocol.FrameBuffer()
    assert [list(buffer.feed(frame[k : k + 1])) for k in range(len(frame) - 1)] == [[]] * (len(frame) - 1)
    assert list(buffer.feed(frame[-1:] + frame[:3])) == [frame[protocol.HEADER_BYTES :]]


def test_an_unbelievable_frame_is_refused_at_its_header():
    with pytest.raises(ProtocolError, match="limit"):
        list(protocol.FrameBuffer().feed((protocol.MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
