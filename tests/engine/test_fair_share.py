from hypothesis import given
from hypothesis import strategies as some

from pinyon.engine.fair_share import ANSWER_WEIGHT, PROMPT_WEIGHT, FairShare


def share_of(**had):
    """A share in which these clients have something waiting, and have had so much."""
    share = FairShare()
    for client in had:
        share.wait(client)
    for client, tokens in had.items():
        share.charge(client, prompt=tokens)
    return share


def test_what_is_computed_for_a_client_counts():
    share = FairShare()
    share.charge("a", prompt=10, answer=3)
    assert share.had("a") == 10 * PROMPT_WEIGHT + 3 * ANSWER_WEIGHT
    assert share.had("b") == 0


def test_whoever_comes_starts_at_the_least_that_anybody_who_waits_has_had():
    share = share_of(a=100, b=40)
    assert share.had_at_arrival("c") == share.had("b")
    share.wait("c")
    assert share.had("c") == share.had("b") == 40


def test_whoever_has_something_waiting_keeps_what_he_has_had():
    share = share_of(a=100, b=1)
    share.give_up("a")
    share.wait("a")
    share.wait("a")
    assert share.had("a") == 100


def test_whoever_has_nothing_waiting_saves_nothing_up():
    """Also not while he reads: else a slow reader would be ahead of all who work beside him, for as long as he has read."""
    share = share_of(reads=1, works=1000)
    share.let_in("reads")
    assert share.had_at_arrival("reads") == 1000
    assert share.had_at_arrival("new") == 1000


def test_where_nobody_waits_whoever_comes_starts_where_the_last_one_was_let_in():
    share = share_of(a=100, b=40)
    share.let_in("b")
    share.let_in("a")
    for client in "bc":
        share.wait(client)
        assert share.had(client) == 100


EVENTS = some.lists(
    some.tuples(
        some.sampled_from("abcdef"), some.sampled_from(["wait", "let in", "give up", "charge"]), some.integers(1, 100)
    ),
    max_size=200,
)


@given(EVENTS)
def test_counters_never_fall_while_one_waits_and_nobody_who_waits_is_behind_who_came_after(events):
    share, waiting, had = FairShare(), dict.fromkeys("abcdef", 0), {}
    for client, what, tokens in events:
        if what == "wait":
            others = [share.had(each) for each, count in waiting.items() if count and each != client]
            share.wait(client)
            if not waiting[client] and others:
                assert share.had(client) >= min(others)
            waiting[client] += 1
        elif what == "charge":
            share.charge(client, prompt=tokens)
        elif waiting[client]:
            (share.let_in if what == "let in" else share.give_up)(client)
            waiting[client] -= 1
        had = {each: tokens for each, tokens in had.items() if waiting[each]}
        for each in (each for each, count in waiting.items() if count):
            assert share.had(each) >= had.get(each, 0)
            had[each] = share.had(each)


def test_what_can_never_matter_again_is_forgotten():
    share = FairShare()
    share.wait("steady")
    for number in range(1000):
        share.wait(f"{number}")
        share.let_in(f"{number}")
        share.charge(f"{number}", prompt=1)
        share.charge("steady", prompt=5)
    assert len(share._had) < 10
