"""POST /v1/tokenize and /v1/detokenize."""

import pytest
from fakes import END_OF_TURN
from http_asking import CHAT, COMPLETIONS, HI, Visitor, chat_body, settle, text_body

TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"


async def test_a_text_becomes_its_tokens(api):
    response = await api.post(TOKENIZE, {"prompt": "Hé"})
    assert response.json() == {"model": "fake", "tokens": [72, 195, 169], "count": 3, "max_model_len": 4096}


async def test_the_count_is_that_of_a_request_with_the_prompt(api):
    for tokenized, path, body in (
        ({"prompt": "Hé"}, COMPLETIONS, text_body(prompt="Hé")),
        ({"messages": HI}, CHAT, chat_body()),
    ):
        count = (await api.post(TOKENIZE, tokenized)).json()["count"]
        assert (await api.whole(path, body)).usage["prompt_tokens"] == count


@pytest.mark.parametrize(
    "text", ["", "a\0b", "👩‍👩‍👧", "e\u0301\u00e9", "a\u202eb", "e" + "\u0301" * 1000, "x" * 100_000]
)
async def test_tokens_become_the_text_again(api, text):
    tokens = (await api.post(TOKENIZE, {"prompt": text})).json()["tokens"]
    assert (await api.post(DETOKENIZE, {"tokens": tokens})).json() == {"model": "fake", "prompt": text}


async def test_control_tokens_have_no_text_and_cut_characters_are_replaced(api):
    shown = (await api.post(DETOKENIZE, {"tokens": [72, END_OF_TURN, 0xC3]})).json()["prompt"]
    assert shown == "H\ufffd"


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": HI}, {"prompt": None, "messages": None}])
async def test_either_a_text_or_messages_are_tokenised(api, body):
    error = await api.refused(TOKENIZE, body)
    assert (error["param"], error["message"]) == ("prompt", "send either `prompt` or `messages`")


async def test_messages_are_checked_as_for_an_answer(api):
    error = await api.refused(TOKENIZE, {"messages": [{"role": "tool", "content": "5"}]})
    assert error["param"] == "messages.0.role"


@pytest.mark.parametrize("token", [260, 2**31 - 1])
async def test_a_token_outside_the_vocabulary_is_refused(api, token):
    error = await api.refused(DETOKENIZE, {"tokens": [72, token]})
    assert error["message"] == f"token id {token} is outside the vocabulary: use 0 to 259"


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [(TOKENIZE, {"prompt": "x"}, "tokenize"), (DETOKENIZE, {"tokens": [72]}, "detokenize")],
)
async def test_a_client_that_leaves_ends_the_work(api, monkeypatch, path, body, method):
    started, ended = [], []

    async def endless(_given):
        started.append(True)
        try:
            await settle_for_ever()
        finally:
            ended.append(True)

    monkeypatch.setattr(api.server.model, method, endless)
    visitor = Visitor(api.server.app, path, body)
    await settle()
    assert (started, ended) == ([True], [])
    visitor.leave()
    await visitor.ended()
    assert ended == [True]


async def settle_for_ever():
    while True:
        await settle()
