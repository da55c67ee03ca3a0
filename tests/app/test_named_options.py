"""Options by name."""

import pytest

from pinyon.app.ask import SamplingChoice
from pinyon.app.errors import UsageError
from pinyon.app.named_options import NamedOptions, named_options, named_values
from pinyon.engine.errors import InvalidRequestError


def test_numbers_come_as_numbers_or_as_text():
    expected = NamedOptions(SamplingChoice(temperature=0, top_k=5, min_p=0.1, presence_penalty=-1), 20)
    values = {"temperature": 0, "top_k": 5, "min_p": 0.1, "presence_penalty": -1.0, "max_tokens": 20}
    assert named_options(values) == expected
    assert named_options({name: str(value) for name, value in values.items()}) == expected
    assert named_options({}) == NamedOptions()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "no option 'temprature'; the options are temperature, top_k"),
        ({"logit_bias": "1"}, "no option 'logit_bias'"),
        ({"seed": "7.5"}, "the option seed is '7.5': it has to be a whole number"),
        ({"max_tokens": "many"}, "max_tokens is 'many'"),
        ({"top_p": "x"}, "the option top_p is 'x': it has to be a number"),
        ({"seed": 99999999999999999999}, "seed is 99999999999999999999, which has more than 64 bits"),
        ({"top_k": str(-(2**63) - 1)}, "top_k is '-9223372036854775809', which has more than 64 bits"),
    ],
)
def test_what_is_no_option_is_refused(values, message):
    with pytest.raises(UsageError, match=message):
        named_options(values)


def test_pairs():
    assert named_values(["a=1", "b=x=y", "c="], "-p") == {"a": "1", "b": "x=y", "c": ""}
    for pairs, message in [
        (["a"], "-p 'a' is no NAME=VALUE"),
        (["=1"], "'=1'"),
        (["a=1", "a=2"], "a twice: '1' and '2'"),
    ]:
        with pytest.raises(UsageError, match=message):
            named_values(pairs, "-p")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 9999}, "temperature is 9999.0; allowed: 0, or 0.0001 to 100"),
        ({"top_p": "nan"}, "top_p is nan; allowed: 0 to 1"),
        ({"max_tokens": 0}, "max_tokens is 0; allowed: 1 to "),
    ],
)
def test_what_no_model_takes_is_refused(values, message):
    with pytest.raises(InvalidRequestError, match=message):
        named_options(values).checked()
    within = named_options({"temperature": 1, "seed": 7, "max_tokens": 5})
    assert within.checked() is within
