"""From an ask to its answer: refused before anything goes out, ended by whoever leaves, told when it fails in its middle."""

import asyncio

import pytest
from fake_service import raises, says
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body
from sse_stream import check_chunks, read_stream, strict_json

from pinyon.app.api.answering import Extras, OpenAnswer, UsageShown, accepted, all_accepted, merged
from pinyon.app.api.errors import ApiError, of_exception
from pinyon.app.ask import Ask, RawText
from pinyon.app.errors import ShuttingDownError
from pinyon.engine.errors import NativeError
from pinyon.engine.events import Chunk, Failed, FailureKind, Finished, FinishReason, Progress, Timings, Usage

BODIES = {CHAT: chat_body(), COMPLETIONS: text_body(), f"{COMPLETIONS}#2": text_body(prompt=["a", "b"])}
END = Finished((FinishReason.STOP,), Usage(2, 3, 1), Timings(0.123456, 1, 2), 7)
CANCELLED = Finished((FinishReason.CANCELLED,), Usage(0, 0), Timings(0, 0, 0), None)


async def events_of(*events):
    for event in events:
        yield event


class ScriptedDoor:
    """Gives these events for each ask, and counts the streams that were closed."""

    def __init__(self, *scripts):
        self._scripts = list(scripts)
        self.closed = 0

    async def events(self, _model, _ask):
        try:
            for event in self._scripts.pop(0):
                yield event
        finally:
            self.closed += 1


ASK = Ask(RawText("x"))


async def test_an_accepted_ask_gives_its_chunks_and_its_end():
    answer = await accepted(ScriptedDoor([Progress(0, 9), Progress(9, 9), Chunk(0, "a"), END]), None, ASK)
    assert answer.comment() == "0 of 9 prompt tokens computed"
    assert [event async for event in answer.chunks()] == [Chunk(0, "a"), END]
    assert answer.comment() == "9 of 9 prompt tokens computed"


@pytest.mark.parametrize(
    ("first", "status", "code"),
    [
        (Failed(FailureKind.INVALID_REQUEST, "no"), 400, "invalid_request"),
        (Failed(FailureKind.ENGINE_CRASH, "dead"), 500, "engine_crash"),
        (CANCELLED, 503, "shutting_down"),
    ],
)
async def test_an_ask_that_is_not_accepted_is_an_error_and_closed(first, status, code):
    door = ScriptedDoor([first])
    with pytest.raises((ApiError, ShuttingDownError)) as refused:
        await accepted(door, None, ASK)
    told = of_exception(refused.value)
    assert (told.status, told.code, door.closed) == (status, code, 1)


async def test_several_asks_are_accepted_together_or_not_at_all():
    door = ScriptedDoor([Progress(0, 1), END], [Failed(FailureKind.INVALID_REQUEST, "no")])
    with pytest.raises(ApiError):
        await all_accepted(door, None, [ASK, ASK])
    assert door.closed == 2


async def test_a_whole_answer_is_put_together_by_choice():
    answer = OpenAnswer(events_of(Chunk(1, "b"), Chunk(0, "a", reasoning="r"), Chunk(1, "c"), END), Progress(0, 1))
    parts, end = await answer.whole(2)
    assert [("".join(part.text), "".join(part.reasoning)) for part in parts] == [("a", "r"), ("bc", "")]
    assert end is END


@pytest.mark.parametrize(
    ("last", "code"), [(Failed(FailureKind.ENGINE_ERROR, "x"), "engine_error"), (CANCELLED, "shutting_down")]
)
async def test_an_answer_that_ends_early_is_an_error(last, code):
    for ask in (lambda answer: answer.whole(1), drained):
        with pytest.raises((ApiError, ShuttingDownError)) as failed:
            await ask(OpenAnswer(events_of(Chunk(0, "a"), last), Progress(0, 1)))
        assert of_exception(failed.value).code == code


async def drained(answer):
    async for _ in merged([answer]):
        pass


async def test_answers_are_merged_as_they_come():
    go = asyncio.Event()

    async def late():
        await go.wait()
        yield Chunk(0, "late")
        yield END

    answers = [OpenAnswer(late(), Progress(0, 1)), OpenAnswer(events_of(Chunk(0, "soon"), END), Progress(0, 1))]
    seen = []
    async for number, event in merged(answers):
        seen.append((number, event))
        if len(seen) == 2:
            go.set()
    assert seen == [(1, Chunk(0, "soon")), (1, END), (0, Chunk(0, "late")), (0, END)]


async def test_one_answer_that_fails_ends_the_merged_ones():
    never = asyncio.Event()
    ended = []

    async def endless():
        try:
            await never.wait()
            yield END
        finally:
            ended.append(True)

    failing = OpenAnswer(events_of(Failed(FailureKind.ENGINE_ERROR, "x")), Progress(0, 1))
    with pytest.raises(ApiError):
        async for _ in merged([OpenAnswer(endless(), Progress(0, 1)), failing]):
            pass
    assert ended == [True]


def test_usage_and_timings_are_shown_in_openai_s_words():
    usage = UsageShown.of(END.usage)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 3, 5)
    assert usage.completion_tokens_details.reasoning_tokens == 1
    extras = Extras.of(END, ["x"])
    assert (extras.seed, extras.ignored, extras.timings.queue_s) == (7, ["x"], 0.1235)


# Known before the first token.


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"n": 0}, 400, "n"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, 400, "response_format.json_schema.schema"),
        ({"model": "nobody"}, 404, "model"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, None),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"temperature": 0.00001}, 400, "temperature"),
    ],
)  # fmt: skip
async def test_faults_known_before_the_first_token_are_plain_errors_also_of_streams(api, fields, status, param):
    whole = await api.refused(CHAT, chat_body(**fields), status)
    streamed = await api.refused(CHAT, chat_body(**fields, stream=True), status)
    assert whole == streamed
    assert whole["param"] == param


# Clients that leave.


def visit(api, path, *, stream):
    return Visitor(api.server.app, path.partition("#")[0], {**BODIES[path], "stream": stream})


async def leaves_at_once(api, visitor):
    """Not one step is computed between the leaving and the idle engine."""
    steps = len(api.server.model.runner.batches)
    visitor.leave()
    await visitor.ended()
    await settle()
    assert api.server.is_idle
    assert len(api.server.model.runner.batches) == steps


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_in_mid_answer_is_noticed_within_a_step(make_api, path, stream):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = visit(api, path, stream=stream)
    await settle()
    for _ in range(5):
        api.server.model.step()
        await settle()
    assert visitor.body.count(b'"index":0') == (0 if not stream else 6 if path == CHAT else 5)
    await leaves_at_once(api, visitor)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_its_prompt_is_noticed_within_a_chunk(make_api, stream):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = Visitor(api.server.app, COMPLETIONS, text_body(prompt="x" * 1000, stream=stream))
    await settle()
    api.server.model.step()
    await settle()
    assert api.server.model.runner.used_cells == 64
    await leaves_at_once(api, visitor)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_queued_client_that_leaves_is_never_started(make_api, path, stream):
    api = make_api(hashed, sequence_ids=1)
    api.server.model.unpaused.clear()
    first = Visitor(api.server.app, CHAT, chat_body(stream=True))
    await settle()
    queued = visit(api, path, stream=stream)
    await settle()
    api.server.model.step()
    await settle()
    queued.leave()
    await queued.ended()
    (first_ask, *others) = api.server.model.asked
    assert others
    first.leave()
    await first.ended()
    assert api.server.is_idle
    assert {owner for batch in api.server.model.runner.batches for owner, _ in batch} == {first_ask.id}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_its_prompt_is_tokenised_is_never_started(make_api, path, stream):
    api = make_api(hashed)
    api.server.model.tokenised.clear()
    visitor = visit(api, path, stream=stream)
    await settle()
    assert visitor.status is None, "nothing goes out before the engine has accepted the ask"
    visitor.leave()
    await visitor.ended()
    assert api.server.is_idle
    assert api.server.model.runner.batches == []


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_reads_nothing_and_leaves_is_noticed(make_api, path):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = visit(api, path, stream=True)
    visitor.stop_reading()
    await settle()
    for _ in range(3):
        api.server.model.step()
        await settle()
    await leaves_at_once(api, visitor)


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_as_its_stream_begins_is_noticed(make_api, path):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = visit(api, path, stream=True)
    visitor.leave()
    await visitor.ended()
    await settle()
    assert api.server.is_idle


async def test_others_go_on_when_one_leaves(make_api):
    api = make_api(says("abcdef"), sequence_ids=2)
    api.server.model.unpaused.clear()
    stays, leaves = (Visitor(api.server.app, CHAT, chat_body()) for _ in range(2))
    await settle()
    api.server.model.step()
    leaves.leave()
    await leaves.ended()
    api.server.model.unpaused.set()
    await stays.ended()
    assert strict_json(stays.body.decode())["choices"][0]["message"]["content"] == "abcdef"


# Failures in the middle.


@pytest.mark.parametrize("path", BODIES)
async def test_the_death_of_the_engine_ends_streams_with_an_error(make_api, path):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    streamed, whole = visit(api, path, stream=True), visit(api, path, stream=False)
    await settle()
    for _ in range(3):
        api.server.model.step()
        await settle()
    api.server.model.die()
    await streamed.ended()
    await whole.ended()
    stream = read_stream(streamed.body)
    check_chunks(stream)
    assert (stream.error["code"], stream.error["type"]) == ("engine_crash", "server_error")
    assert whole.status == 500
    assert strict_json(whole.body.decode())["error"] == stream.error
    assert api.server.is_idle


async def test_a_fault_of_our_own_in_a_stream_is_told_without_its_details(make_api, monkeypatch, caplog):
    api = make_api()
    monkeypatch.setattr("pinyon.app.api.chat.Delta", None)
    stream = await api.stream(CHAT, chat_body())
    assert (stream.chunks, stream.done) == ([], False)
    assert stream.error["message"] == "a fault in Pinyon itself; the server's log has the details"
    assert "NoneType" in caplog.text
    assert api.server.is_idle


async def test_a_failing_choice_ends_its_request_once(make_api):
    api = make_api(raises(3, NativeError("x")))
    stream = await api.stream(CHAT, chat_body(n=3))
    check_chunks(stream)
    assert stream.error["code"] == "engine_error"
    assert api.server.is_idle
