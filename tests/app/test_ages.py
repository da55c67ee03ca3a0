"""How long ago, in minutes, hours, days or weeks."""

import pytest

from pinyon.app.ages import age_s
from pinyon.app.errors import UsageError


@pytest.mark.parametrize(("text", "seconds"), [("45m", 2700), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)])
def test_an_age_is_a_number_and_a_unit(text, seconds):
    assert age_s(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1.5h", "1y", "1234567m"])
def test_what_is_no_age_is_refused_by_name(text):
    with pytest.raises(UsageError, match="--since is "):
        age_s(text, "--since")
