"""Waits between tries, on an injected clock."""

import pytest

from pinyon.models.errors import DownloadError, HubBusyError, HubConnectionError
from pinyon.models.hub.patience import Patience

CUT = HubConnectionError("cut")


def waits(patience_of, error, failures):
    """How long the waits before the tries after so many failures are, until the error is raised."""
    slept: list[float] = []
    patience, lengths = patience_of(slept.append), []
    for number in range(1, failures + 1):
        slept.clear()
        patience.wait(number, error)
        lengths.append(round(sum(slept), 6))
    return lengths


def test_waits_double_and_end():
    assert waits(lambda sleep: Patience(sleep=sleep), CUT, 5) == [0.5, 1, 2, 4, 8]
    with pytest.raises(HubConnectionError):
        Patience(sleep=lambda _: None).wait(6, CUT)


def test_a_wait_that_the_hub_asks_for_is_kept_and_a_long_one_is_told():
    assert waits(lambda sleep: Patience(sleep=sleep), HubBusyError("busy", 7.0), 2) == [7, 7]
    with pytest.raises(HubBusyError):
        Patience(sleep=lambda _: None).wait(1, HubBusyError("busy", 61.0))


def test_no_wait_goes_past_the_deadline():
    with pytest.raises(HubConnectionError):
        Patience(until=10.0, clock=lambda: 9.6, sleep=lambda _: None).wait(1, CUT)


def test_a_wait_is_left_when_the_user_stops():
    slept: list[float] = []
    with pytest.raises(DownloadError, match="stopped"):
        Patience(cancelled=lambda: len(slept) == 3, sleep=slept.append).wait(1, HubBusyError("busy", 50.0))
    assert slept == [0.1] * 3
