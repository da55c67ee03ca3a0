"""How long a model stays, as a request may say it."""

import pytest

from pinyon.app.keep_alive import KeepAlive


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("300", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        (" 10s ", 10.0),
        (-1, None),
        ("-1", None),
        ("-5m", None),
    ],
)
def test_seconds_and_units(asked, seconds):
    assert KeepAlive.of(asked).seconds == seconds


@pytest.mark.parametrize("asked", ["", "m", "5 m", "5d", "x", "5m5", "--5", "1e9", float("inf"), float("nan")])
def test_what_is_no_time_is_told(asked):
    with pytest.raises(ValueError, match=r"no length of time|give seconds"):
        KeepAlive.of(asked)
