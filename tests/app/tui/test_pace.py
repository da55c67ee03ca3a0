import pytest

from pinyon.app.tui.pace import OFTEN_S, SELDOM_S, SHARE, Pace


@pytest.mark.parametrize(
    ("fixed_s", "share_beside", "period_s"),
    [(0.005, 0.0, OFTEN_S), (0.03, 0.0, 0.15), (0.03, 0.05, 0.2), (1.0, 0.0, SELDOM_S), (0.01, 0.9, SELDOM_S)],
    ids=["a quick machine", "a slow one", "with other work", "one that is overloaded", "with much other work"],
)
def test_painting_takes_no_more_than_its_share_and_is_never_given_up(fixed_s, share_beside, period_s):
    spent = [0.0]
    pace = Pace(lambda: spent[0])
    for _ in range(30):
        spent[0] += fixed_s + share_beside * pace.wait_s
        pace.take()
    assert pace.wait_s == pytest.approx(period_s, rel=0.05)
    assert pace.wait_s == SELDOM_S or (fixed_s / pace.wait_s + share_beside) <= SHARE * 1.01
