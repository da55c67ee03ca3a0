"""POST /v1/completions: prompts of text and of tokens, one or several, whole and streamed."""

import asyncio

import pytest
from fake_service import says
from fakes import END_OF_TURN, hashed, hashed_logits
from http_asking import COMPLETIONS, Visitor, settle, text_body
from sse_stream import check_chunks, read_stream, strict_json

from pinyon.app.ask import RawText, RawTokens
from pinyon.app.limits import MAX_PROMPTS


def prompt_decides(answers):
    """The answer that goes with a prompt's first byte."""

    def next_token(_request_id, tokens, generated):
        answer = answers[chr(tokens[0])]
        return answer[generated] if generated < len(answer) else END_OF_TURN

    return next_token


async def test_a_whole_answer_has_openai_s_shape(api):
    document = strict_json((await api.post(COMPLETIONS, text_body(seed=7))).text)
    assert document.pop("id").startswith("cmpl-")
    assert isinstance(document.pop("created"), int)
    del document["pinyon"]["timings"], document["pinyon"]["cache"], document["pinyon"]["speculation"]
    assert document == {
        "object": "text_completion",
        "model": "fake",
        "choices": [{"index": 0, "text": "Hello, you.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 11,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "pinyon": {"ignored": [], "seed": 7},
    }


async def test_a_stream_is_the_text_and_the_reason(api):
    stream = await api.stream(COMPLETIONS, text_body())
    check_chunks(stream)
    parts = [(chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) for chunk in stream.chunks]
    assert parts == [*((letter, None) for letter in "Hello, you."), ("", "stop")]


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("Hi", [RawText("Hi")]),
        ([72, 105], [RawTokens((72, 105))]),
        (["Hi", "you"], [RawText("Hi"), RawText("you")]),
        ([[72], [105, 106]], [RawTokens((72,)), RawTokens((105, 106))]),
        (["Hi"], [RawText("Hi")]),
        ([0], [RawTokens((0,))]),
        ([[0]], [RawTokens((0,))]),
    ],
)
async def test_a_prompt_is_text_or_tokens_one_or_several(api, prompt, asked):
    answer = await api.whole(COMPLETIONS, text_body(prompt=prompt))
    assert [ask.prompt for ask in api.server.model.asked] == asked
    assert [choice.text for choice in answer.choices] == ["Hello, you."] * len(asked)


async def test_an_answer_has_sixteen_tokens_where_no_number_is_given(make_api):
    answer = await make_api(hashed).both(COMPLETIONS, {"prompt": "Hi"})
    assert (answer.usage["completion_tokens"], answer.choices[0].finish_reason) == (16, "length")


async def test_choices_of_several_prompts_follow_one_another(make_api):
    api = make_api(hashed_logits)
    fields = {"temperature": 1, "seed": 5, "max_tokens": 30, "n": 2, "logprobs": 1}
    together = await api.both(COMPLETIONS, text_body(prompt=["one", "three"], **fields))
    apart = [await api.both(COMPLETIONS, text_body(prompt=prompt, **fields)) for prompt in ("one", "three")]
    assert together.choices == apart[0].choices + apart[1].choices
    assert len({choice.text for choice in together.choices}) == 4
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together.usage[name] == sum(answer.usage[name] for answer in apart)


async def test_prompts_that_end_at_different_times_keep_their_places(make_api):
    api = make_api(prompt_decides({"a": b"long" * 20, "b": b"s"}))
    answer = await api.both(COMPLETIONS, text_body(prompt=["a", "b"], n=2))
    assert [choice.text for choice in answer.choices] == ["long" * 20] * 2 + ["s"] * 2


async def test_the_seed_told_is_the_first_prompt_s_also_where_another_ends_first(make_api):
    def next_token(_request_id, tokens, generated):
        if tokens[0] == ord("b") and generated == 1:
            return END_OF_TURN
        return hashed_logits("", tokens, generated)

    api = make_api(next_token)
    body = text_body(prompt=["a", "b"], temperature=1, max_tokens=12)
    streamed = await api.streamed(COMPLETIONS, body)
    again = await api.whole(COMPLETIONS, {**body, "prompt": "a", "seed": streamed.seed})
    assert again.choices[0].text == streamed.choices[0].text


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        ("Hi é\0\u202e", ["Hi é\0\u202e"]),
        (["Hi ", "you "], ["Hi ", "you "]),
        ([[72, 105], [0xC3, 0xA9]], ["Hi", "é"]),
        ([72, END_OF_TURN, 105], ["Hi"]),
    ],
)
async def test_echo_puts_the_prompt_before_the_text(api, prompt, echoed):
    answer = await api.both(COMPLETIONS, text_body(prompt=prompt, echo=True, n=2))
    assert [choice.text for choice in answer.choices] == [f"{text}Hello, you." for text in echoed for _ in range(2)]
    silent = await api.both(COMPLETIONS, text_body(prompt=prompt, echo=False, n=2))
    assert {choice.text for choice in silent.choices} == {"Hello, you."}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"text": "Hi"}}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"prompt": ["Hi", 5]}, "prompt"),
        ({"prompt": [5, "Hi"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": ["x"] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 10**6}, "best_of"),
        ({"prompt_embeds": "QUJD"}, "prompt_embeds"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 0}, "echo"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_by_its_name(api, fields, param, stream):
    error = await api.refused(COMPLETIONS, text_body(**fields, stream=stream))
    assert error["param"] == param
    assert api.server.is_idle


@pytest.mark.parametrize("prompt", ["", ["Hi", ""]])
async def test_an_empty_prompt_is_refused(api, prompt):
    error = await api.refused(COMPLETIONS, text_body(prompt=prompt))
    assert error["message"] == "the prompt is empty: there is nothing to continue"
    assert api.server.is_idle


async def test_a_prompt_is_required(api):
    error = await api.refused(COMPLETIONS, {"max_tokens": 1})
    assert (error["param"], error["message"]) == ("prompt", "prompt: Field required")


@pytest.mark.parametrize("nothing", [None, "", [], False])
async def test_a_refused_field_that_asks_for_nothing_is_let_pass(api, nothing):
    answer = await api.both(COMPLETIONS, text_body(suffix=nothing, best_of=nothing))
    assert answer.ignored == []


async def test_logprobs_stand_in_lists_with_the_places_of_their_tokens(make_api):
    api = make_api(says("aéb"))
    lists = (await api.both(COMPLETIONS, text_body(logprobs=2))).choices[0].logprobs
    assert lists["tokens"] == ["a", "\ufffd", "\ufffd", "b"]
    assert lists["text_offset"] == [0, 1, 2, 3]
    assert [max(top, key=top.get) for top in lists["top_logprobs"]] == lists["tokens"]
    assert [top[token] for top, token in zip(lists["top_logprobs"], lists["tokens"], strict=True)] == lists[
        "token_logprobs"
    ]
    none = (await api.both(COMPLETIONS, text_body(logprobs=0))).choices[0].logprobs
    assert (none["tokens"], none["top_logprobs"]) == (lists["tokens"], None)


async def test_one_refused_prompt_refuses_all_and_none_goes_on(make_api):
    api = make_api(hashed, cells=100)
    error = await api.refused(COMPLETIONS, text_body(prompt=["short", "x" * 200]))
    assert (error["code"], error["prompt_tokens"]) == ("context_length_exceeded", 200)
    assert api.server.is_idle


async def test_a_failure_of_one_prompt_ends_the_stream_and_the_others(make_api):
    api = make_api(hashed, failing=[6], sequence_ids=1)  # the second prompt waits while the first is computed
    stream = await api.stream(COMPLETIONS, text_body(prompt=["a", "b"], max_tokens=50))
    check_chunks(stream)
    assert (stream.done, stream.error["code"], len(stream.chunks)) == (False, "engine_error", 6)
    assert api.server.is_idle


async def test_a_client_that_reads_nothing_and_leaves_ends_all_its_prompts(make_api):
    api = make_api(hashed)
    api.server.model.unpaused.clear()
    visitor = Visitor(api.server.app, COMPLETIONS, text_body(prompt=["a", "b"], stream=True))
    await settle()
    api.server.model.step()
    visitor.stop_reading()
    await settle()
    visitor.leave()
    await visitor.ended()
    assert api.server.is_idle


async def test_a_client_that_leaves_the_stream_of_several_prompts_ends_them_all(make_api):
    api = make_api(hashed)
    visitor = Visitor(api.server.app, COMPLETIONS, text_body(prompt=["a", "b"], stream=True))
    while visitor.body.count(b"data:") < 5:
        await asyncio.sleep(0)
    visitor.leave()
    await visitor.ended()
    assert api.server.is_idle
    with pytest.raises(AssertionError, match="cut off"):
        check_chunks(read_stream(visitor.body))
