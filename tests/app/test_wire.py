"""Messages between commands and the server: nothing is changed on the way, and an error ends the command as it would locally."""

import math

import msgspec
import pytest

from pinyon.app import wire
from pinyon.app.ask import Ask, Chat, RawText, RawTokens, SamplingChoice
from pinyon.app.cli.failures import report
from pinyon.app.errors import AnswerError, AppError, GenerationFailedError, MeasuringError
from pinyon.app.history.errors import HistoryError
from pinyon.engine.errors import ContextOverflowError, EngineError, InvalidRequestError, OverloadedError
from pinyon.engine.events import Chunk, Finished, FinishReason, PositionLogprobs, Timings, TokenLogprob, Usage
from pinyon.engine.protocol import FrameBuffer
from pinyon.models.chat_template import Message
from pinyon.models.errors import HeaderIncompleteError, ModelError


def tree(base):
    return [base, *(kind for child in base.__subclasses__() for kind in tree(child))]


NO_SERVER_S = (AnswerError, HistoryError, MeasuringError)
"""What only commands themselves meet."""
MADE_OF_MORE = (ContextOverflowError, OverloadedError, GenerationFailedError, HeaderIncompleteError)
ERRORS = [
    kind("what happened")
    for base in (AppError, EngineError, ModelError)
    for kind in tree(base)
    if not issubclass(kind, (*MADE_OF_MORE, *NO_SERVER_S))
]


def over_the_wire(message):
    (payload,) = FrameBuffer().feed(wire.encode(message))
    return wire.decode_answer(payload)


@pytest.mark.parametrize(
    "error", [*ERRORS, HeaderIncompleteError(9), OSError("disk")], ids=lambda error: type(error).__name__
)
def test_an_error_ends_a_command_the_same_way_attached_or_not(error, capsys):
    told = over_the_wire(wire.Refused.of(error)).error()
    code = report(error)
    here = capsys.readouterr().err
    assert (report(told), capsys.readouterr().err) == (code, here)


def test_an_error_of_another_version_is_still_told():
    error = wire.Refused("SomethingNewError", "what happened").error()
    assert (type(error).__name__, str(error)) == ("ServerError", "what happened")


@pytest.mark.parametrize(
    "prompt", [Chat((Message("system", "s"), Message("user", "ü\0"))), RawText("x"), RawTokens((1, 2))], ids=repr
)
def test_an_ask_arrives_as_it_was(prompt):
    ask = Ask(prompt, SamplingChoice(temperature=0.1, seed=2**32, logit_bias=((4, -100.0),)), 5, ("stop",), 2, 3)
    assert wire.decode_body(wire.encode(wire.Generate(b"/\xff", ask)), wire.Generate) == wire.Generate(b"/\xff", ask)


def test_a_number_that_json_lacks_stays_one():
    sent = wire.Generate(b"/m", Ask(RawText("x"), SamplingChoice(temperature=math.nan, top_p=math.inf)))
    sampling = wire.decode_body(wire.encode(sent), wire.Generate).ask.sampling
    assert math.isnan(sampling.temperature)
    assert sampling.top_p == math.inf


def test_events_arrive_as_they_were():
    chosen = TokenLogprob(7, -0.5, b"\xf0\x9f")
    chunk = Chunk(0, "text", (7,), (PositionLogprobs(chosen, (chosen,)),), "thought")
    finished = Finished((FinishReason.STOP,), Usage(1, 2, 1), Timings(0.1, 0.2, 0.3), 7)
    assert [over_the_wire(event) for event in (chunk, finished)] == [chunk, finished]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        wire.encode(wire.Load(None, 1)) * 2,
        wire.encode(wire.Cancel("x")),
        wire.encode(wire.Load(None, "many")),
        b"\xff\xff\xff\xff",
        wire.encode(wire.Load(None, 1))[:-1],
    ],
    ids=["empty", "json", "two", "another's", "wrong type", "huge", "cut"],
)
def test_what_is_not_the_route_s_message_is_refused(body):
    with pytest.raises(InvalidRequestError, match="not one frame"):
        wire.decode_body(body, wire.Load)


def test_an_answer_that_is_no_message_is_an_error():
    with pytest.raises(msgspec.DecodeError):
        wire.decode_answer(msgspec.msgpack.encode({"type": "gossip"}))
