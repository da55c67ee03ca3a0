"""What a door asks: choices over a model's defaults, and asks that can travel."""

import msgspec
import pytest

from pinyon.app.ask import Ask, Chat, RawText, RawTokens, SamplingChoice
from pinyon.engine import grammar
from pinyon.engine.request import SamplingParams
from pinyon.models.chat_template import Message

DEFAULTS = SamplingParams(temperature=0.3, top_k=7, seed=5, logit_bias=((1, 2.0),))


def test_what_was_not_chosen_stays_the_model_s():
    assert SamplingChoice().over(DEFAULTS) == DEFAULTS


@pytest.mark.parametrize("name", SamplingChoice.__struct_fields__)
def test_each_choice_comes_over_its_default_also_when_it_is_zero(name):
    zero = () if name == "logit_bias" else 0
    chosen = SamplingChoice(**{name: zero}).over(DEFAULTS)
    assert chosen == msgspec.structs.replace(DEFAULTS, **{name: zero})
    assert getattr(chosen, name) == zero


def test_everything_but_the_window_of_the_repeat_penalty_can_be_chosen():
    assert {*SamplingParams.__struct_fields__} - {*SamplingChoice.__struct_fields__} == {"repeat_last_n"}


def test_asks_have_ids_of_their_own():
    ids = {Ask(RawText("x")).id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(ask_id) == 16 for ask_id in ids)


@pytest.mark.parametrize(
    "prompt", [Chat((Message("system", "a"), Message("user", "b\0\u202e"))), RawText("x"), RawTokens((0, 5))]
)
def test_an_ask_survives_the_way_to_another_process(prompt):
    ask = Ask(prompt, SamplingChoice(temperature=0, logit_bias=((1, -2.5),)), 5, ("a",), 3, 2, grammar.regex("a+"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=Ask) == ask
