import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.logprobs import position_logprobs

rows = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30).map(lambda row: np.array(row, np.float32))


def token_bytes(token):
    return bytes([token, 0xFF])


def reference(logits):
    wide = logits.astype(np.float64)
    return wide - np.logaddexp.reduce(wide)


@given(rows, st.data())
def test_agrees_with_log_softmax(logits, data):
    chosen = data.draw(st.integers(0, len(logits) - 1))
    top = data.draw(st.integers(0, min(20, len(logits))))
    position = position_logprobs(logits, chosen, top, token_bytes)
    expected = reference(logits)
    assert position.chosen.token == chosen
    assert position.chosen.logprob == pytest.approx(expected[chosen], abs=1e-4)
    found = [entry.logprob for entry in position.top]
    assert found == pytest.approx(sorted(expected, reverse=True)[:top], abs=1e-4)
    assert [entry.token for entry in position.top] == list(dict.fromkeys(entry.token for entry in position.top))
    assert all(entry.logprob == pytest.approx(expected[entry.token], abs=1e-4) for entry in position.top)


def test_tokens_come_in_falling_order_with_their_raw_bytes():
    position = position_logprobs(np.array([1, 5, 3, 4], np.float32), 2, 3, token_bytes)
    assert [entry.token for entry in position.top] == [1, 3, 2]
    assert [entry.raw for entry in position.top] == [b"\x01\xff", b"\x03\xff", b"\x02\xff"]
    assert position.chosen == position.top[2]


def test_the_chosen_token_need_not_be_among_the_likeliest():
    position = position_logprobs(np.array([1, 5, 3], np.float32), 0, 1, token_bytes)
    assert (position.chosen.token, [entry.token for entry in position.top]) == (0, [1])


@pytest.mark.parametrize("shift", [-1e4, 0, 1e4, 3e37])
def test_large_logits_do_not_overflow(shift):
    position = position_logprobs(np.array([0, 0], np.float32) + np.float32(shift), 0, 0, token_bytes)
    assert position.chosen.logprob == pytest.approx(np.log(0.5)) if abs(shift) < 1e30 else position.chosen.logprob <= 0


def test_excluded_tokens_have_no_probability():
    position = position_logprobs(np.array([-np.inf, 2, 2], np.float32), 1, 3, token_bytes)
    assert [entry.logprob for entry in position.top] == pytest.approx([np.log(0.5), np.log(0.5), -np.inf])
