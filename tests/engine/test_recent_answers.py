from pinyon.engine.recent_answers import CLIENTS, KEPT_TOKENS, RecentAnswers
from pinyon.engine.suffix_index import Place


def test_answers_are_found_and_none_goes_on_into_the_next():
    recent = RecentAnswers()
    recent.add("me", [1, 2, 3, 4])
    recent.add("me", [5, 6, 7])
    index = recent.of("me")
    assert index.following(index.find([9, 1, 2]), 10) == [3, 4]
    assert index.find([4, 5]) is None
    assert index.find([9, 5, 6]) == Place(7, 2)
    assert recent.of("you") is None


def test_old_answers_go():
    recent = RecentAnswers()
    recent.add("me", [1, 2, 3])
    numbers = range(10, 10 + 3 * KEPT_TOKENS, 100)
    for number in numbers:
        recent.add("me", range(number, number + 100))
    index = recent.of("me")
    assert index.find([1, 2]) is None
    last = numbers[-1]
    assert index.following(index.find([last + 20, last + 21]), 2) == [last + 22, last + 23]


def test_clients_that_were_answered_long_ago_go():
    recent = RecentAnswers()
    for client in range(CLIENTS):
        recent.add(client, [1, 2, 3])
    recent.add(0, [4, 5, 6])
    recent.add("new", [1, 2, 3])
    assert recent.of(0) is not None
    assert recent.of(1) is None
    assert recent.of("new") is not None


def test_everything_can_go():
    recent = RecentAnswers()
    recent.add("me", [1, 2, 3])
    recent.clear()
    assert recent.of("me") is None
