"""Log probabilities in OpenAI's two formats."""

import math

import msgspec

from pinyon.app.api.logprobs import LEAST, ChatLogprobs, TextLogprobs, chat_logprobs, text_logprobs
from pinyon.engine.events import PositionLogprobs, TokenLogprob


def token(raw, logprob=-1.0):
    return TokenLogprob(1, logprob, raw)


A = PositionLogprobs(token(b"a", -0.5), (token(b"a", -0.5), token(b"\xc3", -1.5)))
EMOJI = "🫠".encode()
CUT = [PositionLogprobs(token(EMOJI[:2]), ()), PositionLogprobs(token(EMOJI[2:]), ())]


def plain(value):
    return msgspec.to_builtins(value)


def test_chat_shows_each_position_with_its_bytes():
    assert plain(chat_logprobs([A])) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [195]},
                ],
            }
        ],
        "refusal": None,
    }


def test_the_bytes_of_cut_characters_join_to_the_character():
    shown = chat_logprobs(CUT).content
    assert bytes(byte for position in shown for byte in position.bytes).decode() == "🫠"
    assert [position.token for position in shown] == ["\ufffd", "\ufffd\ufffd"]


def test_completions_show_lists():
    assert plain(text_logprobs([A, A], 7, with_top=True)) == {
        "tokens": ["a", "a"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "\ufffd": -1.5}] * 2,
        "text_offset": [7, 8],
    }
    assert text_logprobs([A], 0, with_top=False).top_logprobs is None


def test_of_tokens_that_look_alike_the_likeliest_is_shown():
    alike = PositionLogprobs(token(b"\xc3"), (token(b"\xc3", -1.0), token(b"\xc4", -2.0), token(b"b", -3.0)))
    assert text_logprobs([alike], 0, with_top=True).top_logprobs == [{"\ufffd": -1.0, "b": -3.0}]


def test_no_positions_give_empty_lists():
    assert chat_logprobs([]) == ChatLogprobs([])
    assert text_logprobs([], 3, with_top=True) == TextLogprobs([], [], [], [])


def test_the_log_of_zero_is_a_number():
    never = PositionLogprobs(token(b"a", -math.inf), (token(b"b", -math.inf),))
    (shown,) = chat_logprobs([never]).content
    assert (shown.logprob, shown.top_logprobs[0].logprob) == (LEAST, LEAST)
    lists = text_logprobs([never], 0, with_top=True)
    assert (lists.token_logprobs, lists.top_logprobs) == ([LEAST], [{"b": LEAST}])
    assert msgspec.json.decode(msgspec.json.encode(lists))["token_logprobs"] == [LEAST]
