"""The shapes that messages come in, as one text and the roles that templates know."""

import socket

import pytest
from http_asking import CHAT, chat_body

from pinyon.app.api.errors import ApiError
from pinyon.app.api.messages import ChatMessage
from pinyon.models.chat_template import Message


def taken(**fields):
    return ChatMessage.model_validate(fields).as_message("messages.3")


def text(value):
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Hi", "Hi"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([text("Hi")], "Hi"),
        ([text("a"), text("b")], "a\nb"),
        ([text("")], ""),
        ([text("a"), text(""), text("b")], "a\n\nb"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
        ([{"type": "text", "text": "a", "annotations": []}], "a"),
        (" \n x\0\u202e ", " \n x\0\u202e "),
    ],
)
def test_content_becomes_one_text(content, expected):
    assert taken(role="user", content=content) == Message("user", expected)


def test_content_may_be_missing():
    assert taken(role="assistant") == Message("assistant", "")
    assert taken(role="assistant", tool_calls=[], name=None) == Message("assistant", "")


@pytest.mark.parametrize(
    ("role", "as_templates_know_it"),
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant")],
)
def test_roles_become_those_of_templates(role, as_templates_know_it):
    assert taken(role=role, content="x").role == as_templates_know_it


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}, "images are not supported yet"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "images are not supported yet"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}, "images are not"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio is not supported yet"),
        ({"type": "file", "file": {"file_id": "x"}}, "files are not supported yet"),
        ({"type": "x" * 1000}, "the type `text` and a text"),
        ({"type": "text"}, "the type `text` and a text"),
        ({"type": "text", "text": None}, "the type `text` and a text"),
        ({"type": "refusal", "text": "x"}, "the type `text` and a text"),
        ({"type": ""}, "the type `text` and a text"),
    ],
)
def test_parts_that_are_no_text_are_refused_by_their_place(part, words):
    with pytest.raises(ApiError) as refused:
        taken(role="user", content=[text("a"), part])
    assert refused.value.param == "messages.3.content.1"
    assert words in refused.value.message
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"role": "tool", "content": "5", "tool_call_id": "a"}, "messages.3.role"),
        ({"role": "tool", "content": "5"}, "messages.3.role"),
        ({"role": "function", "name": "f", "content": "5"}, "messages.3.role"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, "messages.3.tool_calls"),
        ({"role": "assistant", "tool_calls": ["odd"]}, "messages.3.tool_calls"),
    ],
)
def test_tools_are_refused_by_the_message_that_has_them(fields, param):
    with pytest.raises(ApiError) as refused:
        taken(**fields)
    assert (refused.value.param, refused.value.status) == (param, 400)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "messages.1.role"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": "wizard", "content": "x"}, "messages.1.role"),
        ({"role": None, "content": "x"}, "messages.1.role"),
        ({"role": "user", "content": 5}, "messages.1.content"),
        ({"role": "user", "content": {"type": "text"}}, "messages.1.content"),
        ({"role": "user", "content": ["x"]}, "messages.1.content.0"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": "x", "name": 5}, "messages.1.name"),
        ({"role": "assistant", "tool_calls": "x"}, "messages.1.tool_calls"),
        ("x", "messages.1"),
        (None, "messages.1"),
        ([], "messages.1"),
    ],
)
async def test_what_is_no_message_is_refused_by_its_place(api, message, param):
    error = await api.refused(CHAT, chat_body(messages=[{"role": "user", "content": "x"}, message]))
    assert (error["param"], error["code"]) == (param, "invalid_value")


@pytest.mark.parametrize("messages", [[], None, {}, "Hi"])
async def test_messages_are_a_list_that_is_not_empty(api, messages):
    assert (await api.refused(CHAT, chat_body(messages=messages)))["param"] == "messages"


async def test_a_part_and_a_text_make_the_same_prompt(api):
    for content in ("é", [text("é")]):
        answer = await api.both(CHAT, chat_body(messages=[{"role": "user", "content": content}]))
        assert answer.usage["prompt_tokens"] == len("user: \n") + 2
    assert len({ask.prompt for ask in api.server.model.asked}) == 1


async def test_nothing_that_a_message_names_is_fetched_or_opened(api, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(socket.socket, "connect", lambda *args: opened.append(args))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: opened.append(args))
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    for url in ("http://169.254.169.254/latest", "https://localhost:1/", secret.as_uri(), str(secret)):
        for part in ({"type": "image_url", "image_url": {"url": url}}, {"type": "file", "file": {"file_data": url}}):
            error = await api.refused(CHAT, chat_body(messages=[{"role": "user", "content": [part]}]))
            assert "SECRET" not in error["message"]
        for fields in ({"prompt_embeds": url}, {"audio": {"url": url}}):
            await api.refused(CHAT, chat_body(**fields))
        await api.whole(CHAT, chat_body(messages=[{"role": "user", "content": url, "images": [url]}]))
    assert opened == []
    with socket.socket() as planted:
        planted.connect(("127.0.0.1", 1))
    assert len(opened) == 1, "the plant above sees a connection"
