"""The way to the model: names, room, and the end of the server."""

import asyncio

import pytest
from fake_service import FakeStore, record_of, says
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body
from sse_stream import check_chunks, read_stream, streamed_answer, strict_json

from pinyon.app.errors import ModelSlotError
from pinyon.app.limits import RETRY_AFTER_S
from pinyon.engine.config import Limits
from pinyon.engine.context_shape import MAX_SEQUENCES

ROOM = MAX_SEQUENCES + Limits().queue
"""How many answers may be computed or wait."""


def held(api, *bodies, path=CHAT):
    """Ask while the engine stands still."""
    api.server.model.unpaused.clear()
    return [Visitor(api.server.app, path, body) for body in bodies]


async def all_left(*visitors):
    for visitor in visitors:
        visitor.leave()
        await visitor.ended()


# Names.


@pytest.mark.parametrize("name", [None, "fake"])
async def test_the_loaded_model_answers_to_its_name_and_to_none(api, name):
    assert (await api.whole(CHAT, chat_body(model=name))).choices[0].text == "Hello, you."
    assert api.server.service.loads == []


async def test_another_name_is_loaded_if_the_store_knows_it(api):
    api.server.service.store = FakeStore(record_of("other"))
    await api.whole(CHAT, chat_body(model="other"))
    assert api.server.service.loads == ["other"]


async def test_where_nothing_is_loaded_the_default_is(api):
    api.server.service.loaded = None
    await api.whole(CHAT, chat_body())
    assert api.server.service.loads == ["fake"]


@pytest.mark.parametrize(
    "name", ["nobody", "", "/secret/place/fake.gguf", "../fake.gguf", "./fake", "fake\0", "🫠" * 500]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_path_or_an_unknown_name_is_not_found_and_nothing_is_loaded(api, name, stream):
    for path, body in ((CHAT, chat_body()), (COMPLETIONS, text_body())):
        error = await api.refused(path, {**body, "model": name, "stream": stream}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert len(error["message"]) < 500
    for path, body in (("/v1/tokenize", {"prompt": "x"}), ("/v1/detokenize", {"tokens": [1]})):
        await api.refused(path, {**body, "model": name}, 404)
    assert api.server.service.loads == []


async def test_another_model_than_the_loaded_one_is_refused_with_the_service_s_words(api):
    api.server.service.store = FakeStore(record_of("other"))
    api.server.service.load_error = ModelSlotError("fake is loaded; other needs an engine of its own: start another")
    error = await api.refused(CHAT, chat_body(model="other"))
    assert (error["code"], error["param"]) == ("model_not_loaded", "model")
    assert error["message"].startswith("fake is loaded; other needs")


# Room.


async def test_all_beyond_the_room_are_told_at_once_and_the_rest_finish(make_api):
    api = make_api(says("ab"), sequence_ids=MAX_SEQUENCES, cells=1 << 13)
    visitors = held(api, *(chat_body(stream=index % 2 == 0) for index in range(400)))
    await settle()
    refused = [visitor for visitor in visitors if visitor.task.done()]
    assert len(refused) == 400 - ROOM
    assert refused == visitors[ROOM:], "whoever came first is in"
    for visitor in refused:
        headers = dict(visitor.sent[0]["headers"])
        error = strict_json(visitor.body.decode())["error"]
        assert (visitor.status, error["code"]) == (503, "overloaded")
        assert int(headers[b"retry-after"]) == error["retry_after_s"] >= 1
    api.server.model.unpaused.set()
    for index, visitor in enumerate(visitors[:ROOM]):
        await visitor.ended()
        if index % 2 == 0:
            assert streamed_answer(read_stream(visitor.body)).choices[0].text == "ab"
        else:
            assert strict_json(visitor.body.decode())["choices"][0]["message"]["content"] == "ab"
    assert api.server.is_idle
    assert (await api.whole(CHAT, chat_body())).choices[0].text == "ab"


async def test_answers_end_in_the_order_in_which_they_came(make_api):
    api = make_api(says("abc"), sequence_ids=4)
    ended = []
    visitors = held(api, *[chat_body(max_tokens=3)] * 30)
    for number, visitor in enumerate(visitors):
        visitor.task.add_done_callback(lambda _task, number=number: ended.append(number))
    await settle()
    api.server.model.unpaused.set()
    await asyncio.gather(*(visitor.ended() for visitor in visitors))
    assert ended == sorted(ended)


async def test_each_choice_and_each_prompt_takes_room(make_api):
    api = make_api(hashed, sequence_ids=MAX_SEQUENCES)
    visitors = held(api, *[chat_body(n=8)] * (ROOM // 8), chat_body(n=ROOM % 8))
    await settle()
    assert api.server.door.running + api.server.door.waiting == ROOM
    await api.refused(CHAT, chat_body(), 503)
    await all_left(visitors[0])
    await api.refused(COMPLETIONS, text_body(prompt=["x"] * 16, n=1), 503)
    assert api.server.door.running + api.server.door.waiting == ROOM - 8
    await all_left(*visitors[1:])
    assert api.server.is_idle


async def test_a_refused_request_takes_no_room(make_api):
    api = make_api(cells=100)
    for _ in range(3):
        await api.refused(CHAT, chat_body(messages=[{"role": "user", "content": "x" * 200}]))
        await api.refused(COMPLETIONS, text_body(prompt=[260]))
    assert api.server.is_idle


# The end.


async def test_a_server_that_ends_takes_nothing_new(api):
    await api.server.door.drain(0)
    for path, body in ((CHAT, chat_body()), (COMPLETIONS, text_body()), ("/v1/tokenize", {"prompt": "x"})):
        error = await api.refused(path, body, 503)
        assert error["code"] == "shutting_down"


async def test_open_answers_finish_within_the_grace(api):
    whole, streamed = held(api, chat_body(), chat_body(stream=True))
    await settle()
    draining = asyncio.ensure_future(api.server.door.drain(60))
    await settle()
    assert not draining.done()
    await api.refused(CHAT, chat_body(), 503)
    api.server.model.unpaused.set()
    await asyncio.wait_for(draining, 5)
    await whole.ended()
    await streamed.ended()
    assert strict_json(whole.body.decode())["choices"][0]["message"]["content"] == "Hello, you."
    assert streamed_answer(read_stream(streamed.body)).choices[0].text == "Hello, you."


async def test_answers_that_outlast_the_grace_end_with_an_error(make_api):
    api = make_api(hashed, sequence_ids=1)
    whole, streamed, queued = held(api, chat_body(stream=False), chat_body(stream=True), chat_body(stream=True, n=2))
    several = Visitor(api.server.app, COMPLETIONS, text_body(prompt=["a", "b"], stream=True))
    await settle()
    api.server.model.step()
    await api.server.door.drain(0.01)
    for visitor in (whole, streamed, queued, several):
        await visitor.ended()
    assert (whole.status, dict(whole.sent[0]["headers"])[b"retry-after"]) == (503, str(RETRY_AFTER_S).encode())
    assert strict_json(whole.body.decode())["error"]["code"] == "shutting_down"
    for visitor in (streamed, queued, several):
        stream = read_stream(visitor.body)
        check_chunks(stream)
        assert stream.error["code"] == "shutting_down"
    assert api.server.is_idle


async def test_an_idle_server_ends_at_once(api):
    await asyncio.wait_for(api.server.door.drain(60), 1)


async def test_an_ask_that_has_ended_can_be_cancelled_in_vain(api):
    await api.whole(CHAT, chat_body())
    await api.server.door.cancel(api.server.model.asked[0].id)
    await api.server.door.cancel("nobody")
    assert api.server.is_idle
