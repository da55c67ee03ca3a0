"""How numbers of things read."""

import pytest

from pinyon.app.counted import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1234, "1,234 tokens")]
)
def test_one_thing_is_no_plural(number, words):
    assert counted(number, "token") == words
