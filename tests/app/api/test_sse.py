"""Streams to clients that may leave or stop reading at any moment; and that the tests' own reader of streams is strict."""

import asyncio

import pytest
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body
from sse_stream import check_chunks, read_stream, streamed_answer

from pinyon.app.api.sse import DONE, ClientGoneError, Stream, data_event, until_disconnect


class Wire:
    """The two ends of an ASGI connection: `left` ends it, `sent` is what went out."""

    def __init__(self):
        self.left = asyncio.Event()
        self.sent = []

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message["body"] for message in self.sent[1:])


@pytest.fixture
def wire():
    return Wire()


async def pieces(*texts, then=None, closed=None):
    try:
        for text in texts:
            yield text
        if then is not None:
            await then.wait()
    finally:
        if closed is not None:
            closed.append(True)


def stream_of(made, closed=None, **options):
    async def close():
        if closed is not None:
            closed.append("all")

    return Stream(made, lambda error: f"! {error}".encode(), close, **options)


async def failing():
    yield b"a"
    raise ValueError("broken")


async def test_an_error_in_the_middle_is_the_last_piece(wire):
    closed = []
    await stream_of(failing(), closed)({}, wire.receive, wire.send)
    assert wire.body == b"a! broken"
    assert closed == ["all"]


async def test_what_belongs_to_a_stream_is_closed_though_it_never_began(wire):
    closed = []
    wire.left.set()
    await stream_of(pieces(b"a"), closed)({}, wire.receive, wire.send)
    assert closed == ["all"]


async def test_pieces_go_out_one_by_one_and_the_end_is_told(wire):
    await stream_of(pieces(b"a", b"b"))({}, wire.receive, wire.send)
    start, *bodies = wire.sent
    assert start["status"] == 200
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"x-accel-buffering": b"no",
    }
    assert [(body["body"], body.get("more_body", False)) for body in bodies] == [
        (b"a", True),
        (b"b", True),
        (b"", False),
    ]


async def test_the_headers_go_out_before_the_first_piece(wire):
    streaming = asyncio.ensure_future(stream_of(pieces(then=asyncio.Event()))({}, wire.receive, wire.send))
    await settle()
    assert [message["type"] for message in wire.sent] == ["http.response.start"]
    wire.left.set()
    await streaming


async def test_a_silent_stream_sends_comments_and_a_lively_one_none(wire):
    more = asyncio.Event()
    stream = stream_of(pieces(b"a", then=more), comment=lambda: "3 of 9", silence_s=0.01)
    streaming = asyncio.ensure_future(stream({}, wire.receive, wire.send))
    while len(wire.sent) < 4:
        await asyncio.sleep(0.001)
    more.set()
    await streaming
    assert wire.body.startswith(b"a: 3 of 9\n\n: 3 of 9\n\n")
    wire.sent.clear()
    await stream_of(pieces(b"a", b"b"), comment=lambda: "never", silence_s=60)({}, wire.receive, wire.send)
    assert wire.body == b"ab"


async def test_a_stream_whose_client_leaves_is_closed_and_sends_no_end(wire):
    closed = []
    streaming = asyncio.ensure_future(
        stream_of(pieces(b"a", then=asyncio.Event(), closed=closed))({}, wire.receive, wire.send)
    )
    await settle()
    wire.left.set()
    await streaming
    assert (closed, wire.body) == ([True], b"a")
    assert all(message.get("more_body", True) for message in wire.sent)


async def test_work_that_is_done_first_is_returned(wire):
    async def work():
        return 5

    assert await until_disconnect(wire.receive, work()) == 5


async def test_work_whose_client_leaves_is_cancelled(wire):
    cancelled = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    wire.left.set()
    with pytest.raises(ClientGoneError):
        await until_disconnect(wire.receive, work())
    assert cancelled == [True]


async def test_the_error_of_the_work_is_raised(wire):
    async def work():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await until_disconnect(wire.receive, work())


async def test_a_cancelled_wait_cancels_its_work(wire):
    cancelled = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    waiting = asyncio.ensure_future(until_disconnect(wire.receive, work()))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancelled == [True]


# What a client sees while the engine waits.


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, text_body())])
async def test_headers_and_comments_come_while_the_prompt_waits(api, monkeypatch, path, body):
    monkeypatch.setitem(Stream.__init__.__kwdefaults__, "silence_s", 0.01)
    api.server.model.unpaused.clear()
    visitor = Visitor(api.server.app, path, {**body, "stream": True})
    while visitor.body.count(b": 0 of ") < 2:
        await asyncio.sleep(0.001)
    assert visitor.status == 200
    api.server.model.unpaused.set()
    await visitor.ended()
    stream = read_stream(visitor.body)
    total = 2 if path == COMPLETIONS else len("user: Hi\n")
    assert stream.comments[0] == f"0 of {total} prompt tokens computed"
    assert streamed_answer(stream).choices[0].text == "Hello, you."


async def test_comments_follow_the_prompt_as_it_is_computed(api, monkeypatch):
    monkeypatch.setitem(Stream.__init__.__kwdefaults__, "silence_s", 0.01)
    model = api.server.model
    model.unpaused.clear()
    visitor = Visitor(api.server.app, COMPLETIONS, text_body(prompt="x" * 100, stream=True))
    await settle()
    model.step()
    while b": 64 of 100 prompt tokens computed\n\n" not in visitor.body:
        await asyncio.sleep(0.001)
    visitor.leave()
    await visitor.ended()
    assert api.server.is_idle


# The reader that all tests of streams trust.

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
EXTRAS = {"ignored": [], "seed": 1, "timings": {}, "cache": {"resident": 0, "ram": 0, "disk": 0}}


def chunk(delta=None, finish=None, index=0, **more):
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "choices": [choice], **more}


def raw(*documents, end=DONE):
    return b"".join(data_event(document) for document in documents) + end


ROLE, TEXT = chunk({"role": "assistant", "content": ""}), chunk({"content": "a"})
END = chunk(finish="stop", pinyon=EXTRAS)
ERROR = {"error": {"message": "m", "type": "server_error", "param": None, "code": None}}


def test_a_sound_stream_is_read():
    assert streamed_answer(read_stream(raw(ROLE, TEXT, END))).choices[0].text == "a"


def test_an_error_ends_a_sound_stream():
    stream = read_stream(raw(ROLE, TEXT, ERROR, end=b""))
    check_chunks(stream)
    assert stream.error == ERROR["error"]


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(raw(ROLE, TEXT), id="no finish reason"),
        pytest.param(raw(ROLE, TEXT, END, end=b""), id="no [DONE]"),
        pytest.param(raw(ROLE, TEXT, END, TEXT), id="text after the end"),
        pytest.param(raw(ROLE, TEXT, END, END), id="two ends"),
        pytest.param(raw(ROLE, TEXT, chunk(finish="cancelled", pinyon=EXTRAS)), id="a reason of our own"),
        pytest.param(raw(ROLE, TEXT, chunk(finish="stop")), id="no extras"),
        pytest.param(raw(ROLE, chunk({"content": "a"}, index=1), END), id="a choice without end"),
        pytest.param(raw(TEXT, END), id="no role"),
        pytest.param(raw(ROLE, ROLE, END), id="two roles"),
        pytest.param(raw(ROLE, chunk({"content": ""}), END), id="empty text"),
        pytest.param(raw(ROLE, TEXT, ERROR), id="[DONE] after an error"),
        pytest.param(raw(ROLE, ERROR, TEXT, END), id="text after an error"),
        pytest.param(raw(ROLE, {**TEXT, "id": "chatcmpl-2"}, END), id="another id"),
        pytest.param(
            raw(ROLE, {name: value for name, value in TEXT.items() if name != "created"}, END), id="no created"
        ),
        pytest.param(raw(ROLE, TEXT, {**END, "usage": {}}), id="usage unasked"),
        pytest.param(raw(ROLE, TEXT, END) + b": late\n\n", id="a comment after the end"),
        pytest.param(raw(ROLE, TEXT, END)[:-1], id="an event without its empty line"),
        pytest.param(raw(ROLE, TEXT, END).replace(b"\n\n", b"\r\n\r\n"), id="other line ends"),
        pytest.param(raw(ROLE, TEXT, END).replace(b'"a"', b'"\xff"'), id="no UTF-8"),
        pytest.param(raw(ROLE, TEXT, END).replace(b'"a"', b"NaN"), id="no JSON"),
        pytest.param(raw(ROLE, TEXT, END).replace(b'"a"', b'"a", "content": "b"'), id="a name twice"),
        pytest.param(raw(ROLE, TEXT, END).replace(b"data: ", b"data:\ndata: "), id="two lines"),
    ],
)
def test_a_planted_fault_in_a_stream_is_found(planted):
    with pytest.raises((AssertionError, KeyError, UnicodeDecodeError)):
        streamed_answer(read_stream(planted))
