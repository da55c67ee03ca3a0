"""Bars: as long as they should be, in proportion, and what is lacking is seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.app.memory_bar import FREE, OVER, bar_text, memory_bar


@pytest.mark.parametrize(
    ("sizes", "budget", "shown"),
    [
        ((50, 25, 0), 100, "█████▓▓▓░░"),
        ((50, 20, 30), 100, "█████▓▓▒▒▒"),
        ((100, 60, 40), 100, "█████!!!!!"),
        ((0, 0, 0), 100, "░░░░░░░░░░"),
        ((10, 0, 0), 0, "!!!!!!!!!!"),
        ((0, 0, 0), 0, "░░░░░░░░░░"),
    ],
)
def test_a_bar_shows_what_is_taken_and_what_is_left(sizes, budget, shown):
    assert bar_text(memory_bar(sizes, budget, 10)) == shown


@given(st.tuples(*[st.integers(0, 1 << 40)] * 3), st.integers(0, 1 << 40), st.integers(1, 80))
def test_every_bar_is_as_long_as_asked(sizes, budget, width):
    text = bar_text(memory_bar(sizes, budget, width))
    assert len(text) == width
    assert not (OVER in text and FREE in text)
    assert (OVER in text) <= (sum(sizes) > budget)
