from pinyon.engine.answer_lengths import AnswerLengths


def test_what_follows_is_what_is_missing_to_the_mean_of_past_answers():
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.take(50)
    assert [lengths.rest(tokens) for tokens in (0, 10, 49)] == [50, 40, 12]


def test_what_is_longer_than_others_is_expected_to_go_on():
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.take(10)
    assert [lengths.rest(tokens) for tokens in (10, 100, 1000)] == [2, 25, 250]
    assert lengths.rest(0) >= 1
