"""How numbers of things read."""

import pytest

from pinyon.app.counted import counted, memory


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1234, "1,234 tokens")]
)
def test_one_thing_is_no_plural(number, words):
    assert counted(number, "token") == words


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(0, "0 MiB"), (300 << 20, "300 MiB"), (1 << 30, "1.0 GiB"), (2345 << 30, "2,345.0 GiB")]
)
def test_memory_is_told_in_the_units_that_people_speak_of(size_bytes, words):
    assert memory(size_bytes) == words
