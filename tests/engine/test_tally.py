import pytest

from pinyon.engine.tally import Counts, Tally


def test_values_are_counted_up_to_their_bound():
    tally = Tally((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 2.0, 4.0, 5.0, 6.0, 100.0):
        tally.add(value)
    assert tally.counts == Counts((1.0, 2.0, 5.0), (2, 2, 2, 2), 120.0)


def test_nothing_is_counted_at_first():
    assert Tally((1.0,)).counts == Counts((1.0,), (0, 0), 0.0)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 5.0), (0.625, 3.5), (0.9, 9.0), (1.0, 9.0)]
)
def test_a_quantile_lies_as_far_in_its_bucket_as_values_spread_evenly_would(share, value):
    counts = Counts((1.0, 2.0, 5.0, 9.0), (4, 0, 2, 0, 2), 50.0)
    assert counts.number == 8
    assert counts.quantile(share) == pytest.approx(value)
