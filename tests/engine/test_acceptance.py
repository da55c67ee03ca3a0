import numpy as np
import pytest

from pinyon.engine.acceptance import Acceptance


def test_longer_common_ends_are_trusted_more_from_the_start():
    chances = [Acceptance().chances(length, 1)[0] for length in (2, 4, 8, 16, 32, 64)]
    assert chances == sorted(chances)
    assert 0 < chances[0] < chances[-1] < 1


def test_a_draft_s_chances_fall():
    chances = Acceptance().chances(3, 63)
    assert len(chances) == 63
    assert (np.diff(chances) < 0).all()


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_rates_are_learned_for_each_length_by_itself(rate):
    acceptance = Acceptance()
    untouched = Acceptance().chances(40, 1)[0]
    for number in range(400):
        acceptance.take(5, came_true=number % 2 < 2 * rate)
    assert acceptance.chances(5, 1)[0] == pytest.approx(rate, abs=0.06)
    assert acceptance.chances(40, 1)[0] == untouched


def test_the_latest_count_most():
    acceptance = Acceptance()
    for came_true in (True,) * 300 + (False,) * 150:
        acceptance.take(10, came_true=came_true)
    assert acceptance.chances(10, 1)[0] < 0.15


def test_what_one_answer_taught_is_where_the_next_begins():
    everywhere = Acceptance()
    first = Acceptance(everywhere)
    for _ in range(200):
        first.take(6, came_true=False)
    second = Acceptance(everywhere)
    assert second.chances(6, 1)[0] < 0.1
    for _ in range(20):
        second.take(6, came_true=True)
    assert second.chances(6, 1)[0] > 0.8, "an answer's own tokens count more than what was before"
