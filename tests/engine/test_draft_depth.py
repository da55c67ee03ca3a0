from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.draft_depth import MARGIN, depths

CHANCES = st.lists(st.lists(st.floats(0, 1), max_size=5).map(lambda each: np.cumprod([*each])), min_size=1, max_size=3)


def speed(chances, each, costs):
    tokens = len(chances) + sum(mine[:depth].sum() for mine, depth in zip(chances, each, strict=True))
    return tokens / costs[sum(each)]


@given(CHANCES, st.lists(st.floats(0.1, 2), min_size=16, max_size=16), st.integers(0, 15))
def test_no_other_depths_give_more_tokens_a_second(chances, steps_s, room):
    found = depths(chances, lambda rows, _chosen: np.array(steps_s)[rows], rows=room, limit_s=9)
    assert sum(found.each) <= room
    assert all(depth <= len(mine) for depth, mine in zip(found.each, chances, strict=True))
    assert (found.seconds, found.plain_s) == (steps_s[sum(found.each)], steps_s[0])
    others = [each for each in product(*(range(len(mine) + 1) for mine in chances)) if sum(each) <= room]
    best = max(speed(chances, each, steps_s) for each in others)
    plain = len(chances) / steps_s[0]
    if best > MARGIN * plain * (1 + 1e-9):
        assert speed(chances, found.each, steps_s) == pytest.approx(best)
    elif best < MARGIN * plain * (1 - 1e-9):
        assert not any(found.each), "none wins ties"


def line(base_s, row_s):
    return lambda rows, chosen: base_s + row_s * rows + 0 * chosen


CERTAIN = np.ones(40)


def test_free_rows_are_all_used_and_dear_ones_are_not():
    assert depths([CERTAIN], line(1, 0), rows=63, limit_s=9).each == [40]
    assert depths([CERTAIN], line(1, 1), rows=63, limit_s=99).each == [0], "a row costs what a step does"


def test_the_limit_holds_for_drafts_and_not_for_the_step_without():
    assert depths([CERTAIN], line(1, 0.1), rows=63, limit_s=2.05).each == [10]
    assert depths([CERTAIN], line(5, 0.1), rows=63, limit_s=2).each == [0]


def test_who_is_surer_gets_the_rows():
    each = depths([np.full(9, 0.3), CERTAIN, np.zeros(0)], line(1, 0.1), rows=9, limit_s=9).each
    assert each == [0, 9, 0]


def test_choosing_counts_too():
    chances = [np.array([0.1])]
    assert depths(chances, line(1, 0.01), rows=9, limit_s=99).each == [1]
    assert depths(chances, lambda rows, chosen: 1 + 0.01 * rows + 10 * chosen, rows=9, limit_s=99).each == [0]


def test_steps_that_are_cheap_in_bulk_get_deep_drafts():
    """As where kernels work in groups: 2 to 15 rows cost as much as 16."""
    chances = 0.9 ** np.arange(1, 64)
    each = depths([chances], lambda rows, _chosen: 1.0 + 1.5 * (rows > 0) + 0.02 * rows, rows=63, limit_s=99).each
    assert each[0] > 10
