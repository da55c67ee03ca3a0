import pytest

from pinyon.engine.places import Need, Places

SHORT = Need(10, 5.0)


def begun(places, *needs):
    """Return when each of those who come one after the other begins."""
    times = []
    for need in needs:
        places.take(need)
        times.append(places.now_s)
    return times


def test_what_fits_begins_at_once_and_the_rest_when_others_end():
    assert begun(Places(100, 8), *[SHORT] * 12) == [0.0] * 8 + [5.0] * 4
    assert begun(Places(25, 8), *[SHORT] * 5) == [0.0, 0.0, 5.0, 5.0, 10.0]


def test_nobody_begins_before_who_came_first():
    assert begun(Places(30, 8), Need(25, 4.0), Need(30, 2.0), SHORT) == [0.0, 4.0, 6.0]


def test_what_is_too_much_for_all_begins_alone():
    assert begun(Places(30, 8), SHORT, Need(99, 2.0), SHORT) == [0.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("needs", "times"),
    [
        ([Need(10, 5.0, is_long=True), SHORT, Need(10, 1.0, is_long=True)], [0.0, 0.0, 5.0]),
        ([SHORT, Need(10, 3.0, is_alone=True), SHORT], [0.0, 5.0, 8.0]),
    ],
    ids=["one long one at a time", "nobody beside one who is alone"],
)
def test_who_tolerates_whom(needs, times):
    assert begun(Places(100, 8), *needs) == times


def test_who_has_a_place_keeps_it_until_his_end_also_if_it_is_too_much():
    places = Places(10, 1)
    for seconds in (1.0, 3.0):
        places.hold(Need(10, seconds))
    assert begun(places, SHORT) == [3.0]
