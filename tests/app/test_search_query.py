import pytest

from pinyon.app.errors import UsageError
from pinyon.app.history.records import Role
from pinyon.app.search_query import Query, query_of


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("jay  nut", Query("jay nut")),
        ("role:user jay", Query("jay", role=Role.USER)),
        ("jay MODEL:qwen2.5-coder:0.5b", Query("jay", model="qwen2.5-coder:0.5b")),
        ("since:2d jay", Query("jay", since=1_000_000 - 2 * 86_400)),
        ("since:45M", Query("", since=1_000_000 - 45 * 60)),
        ('"role:bird"', Query('"role:bird"')),
        ("parole:user", Query("parole:user")),
        ("", Query("")),
    ],
)
def test_filters_are_taken_out_of_the_words(text, query):
    assert query_of(text, clock=lambda: 1_000_000) == query


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jay role:bird", "role is 'bird': it can be system, user, assistant"),
        ("since:soon", "since is 'soon': give a number of minutes"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        query_of(text)
