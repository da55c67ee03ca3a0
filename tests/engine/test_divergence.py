"""What is said of two texts that part: only what can be seen in them."""

import pytest
from fakes import BOS, END_OF_TURN, USER_TAG, ByteTable

from pinyon.engine.cache_report import Gap, Miss
from pinyon.engine.divergence import explained
from pinyon.engine.request import Reasoning
from pinyon.engine.vocab import Vocab

END, START = "END", "START"
CONTROLS = {END: END_OF_TURN, START: BOS}


class Words(ByteTable):
    """Every other token is a word, as it comes."""

    def __init__(self):
        super().__init__()
        self.words = []

    def token(self, word):
        if word in CONTROLS:
            return CONTROLS[word]
        if word not in self.words:
            self.words.append(word)
        return 1000 + self.words.index(word)

    def text(self, token):
        return self.words[token - 1000].encode() if token >= 1000 else super().text(token)


def explain(before, known, now, reasoning=None, after=""):
    """What is said of two lists of words after a common one; words are separated by bars."""
    table = Words()
    ids = [[table.token(word) for word in text.split("|") if word] for text in (before, known, now, after)]
    prompt = ids[0] + ids[2] + ids[3]
    gap = Gap.between(ids[1], ids[0] + ids[2], len(ids[0]))
    return explained(prompt, gap, Vocab(table), reasoning)


# The same text in other tokens


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("Hel|lo", "Hello"),
        ("Hello", "Hel|lo"),
        ("Hel|lo| you", "H|ello| there"),
        ("a|b|c|d", "abcd"),
        (f"Hel|lo|{END}", f"Hello|{END}"),
        ("é|é", "éé"),
    ],
)
def test_what_is_cut_otherwise_and_then_at_the_same_place_is_the_same_text(known, now):
    miss, advice = explain("some|thing", known, now)
    assert miss is Miss.RETOKENISED
    assert "other tokens" in advice


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("the|rapist", "there"),
        ("Hel|lo", "Help"),
        ("Hello", "Hell"),
        ("12|345", "123|4"),
        ("Hel|lo", "Hel-|lo"),
        (f"{END}|a", f"{START}|a"),
        (f"Hel|{END}|lo", "Hello"),
    ],
    ids=lambda text: text,
)
def test_what_only_begins_alike_is_another_text(known, now):
    assert explain("some|thing", known, now).miss is Miss.DIVERGED


def test_a_control_token_is_not_the_text_of_its_name():
    table = Words()
    known, now = [END_OF_TURN], [table.token("<|im_"), table.token("end|>")]
    assert Vocab(table).shown(known) == Vocab(table).shown(now)
    assert explained(now, Gap.between(known, now, 0), Vocab(table), None).miss is Miss.DIVERGED


def test_a_tag_that_was_one_token_and_comes_back_as_text_is_the_same_text():
    vocab = Vocab(ByteTable())
    known, now = [USER_TAG, ord("x")], [*b"<tool>x"]
    assert explained(now, Gap.between(known, now, 0), vocab, None).miss is Miss.RETOKENISED


# Former answers

TURN = f"{START}|user:|What?|{END}|\n|{START}|bot:"
NEXT = f"{END}|\n|{START}|user:|And then?|{END}|\n|{START}|bot:"


@pytest.mark.parametrize(
    ("before", "known", "now"),
    [
        ("", f"An answer|{END}", f"Another|{END}"),
        ("An answer", f"\n|{END}", END),
        ("An answer", f"{END}|\n", f" and more|{END}"),
    ],
    ids=["other words", "white space", "more words"],
)
def test_an_answer_that_comes_back_changed_is_told(before, known, now):
    miss, advice = explain(f"{TURN}|{before}", known, now, after=NEXT)
    assert miss is Miss.HISTORY_CHANGED
    assert "template or the client" in advice


@pytest.mark.parametrize("opened", [True, False])
def test_thoughts_that_are_not_in_the_history_are_told(opened):
    thoughts = f"<think>|\n|Hmm|</think>|An answer|{END}"
    after = f"{NEXT}|<think>|\n" if opened else NEXT
    reasoning = Reasoning("<think>", ("</think>",), opened=opened)
    miss, advice = explain(TURN, thoughts, f"An answer|{END}", reasoning, after=after)
    assert miss is Miss.HISTORY_CHANGED
    assert "thoughts are not in the history" in advice
    other = explain(TURN, f"One answer|{END}", f"An answer|{END}", reasoning, after=after)
    assert "thoughts" not in other.advice


@pytest.mark.parametrize(
    ("before", "known", "now", "after"),
    [
        (f"{START}|user:", f"What?|{END}", f"Who?|{END}", f"\n|{START}|bot:"),
        (f"{TURN}|An answer|{END}|\n|{START}|user:", f"What?|{END}", f"Who?|{END}", f"\n|{START}|bot:"),
        (f"{TURN}|An answer|{END}|\n", f"{START}|user:", "Well", NEXT),
        ("Once upon", " a time", " another time", ""),
        (START, "Once|upon", "Twice|upon", ""),
        (f"{START}|a|{END}", "Once|upon", "Twice|upon", ""),
        (f"{TURN}|An answer|{END}", f"\n|{START}|user:", f"\n\n|{START}|user:", NEXT),
    ],
    ids=["a question", "a later question", "between messages", "no controls", "one", "no heading", "past an answer"],
)
def test_what_is_no_answer_is_not_told_as_one(before, known, now, after):
    assert explain(before, known, now, after=after).miss is Miss.DIVERGED


@pytest.mark.parametrize(("role", "miss"), [("bot", Miss.HISTORY_CHANGED), ("user", Miss.DIVERGED)])
def test_a_role_may_stand_between_two_control_tokens(role, miss):
    before = f"{START}|{role}|{END}|\n"
    assert explain(before, "Once|.", "Twice|.", after=f"{START}|bot|{END}|\n").miss is miss


def test_an_answer_in_other_tokens_is_that_and_no_other_answer():
    assert explain(TURN, f"An| answer|{END}", f"An answer|{END}", after=NEXT).miss is Miss.RETOKENISED


# Advice


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("tool a(x)\n|tool b(y)\n|end", "tool b(y)\n|tool a(x)\n|end"),
        ("tool a(x)\n|tool b(y)\n|tool c(z)\n|end", "tool b(y)\n|tool c(z)\n|tool a(x)\n|end"),
        ('{"a": 1}, |{"b": 2}|]', '{"b": 2}, |{"a": 1}|]'),
        ('{"a": 1, |"b": 2}', '{"b": 2, |"a": 1}'),
    ],
)
def test_the_same_parts_in_another_order_are_told(known, now):
    for before in ("You have these tools:|\n", ""):
        miss, advice = explain(before, known, now)
        assert miss is Miss.DIVERGED
        assert "another order" in advice


def test_a_line_is_looked_at_from_its_beginning():
    assert "another order" in explain("Tools:\n|tool ", "a\n|tool |b\n|.", "b\n|tool |a\n|.").advice


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("tool a\n|tool b\n|end", "tool b\n|end"),
        ("tool b\n|end", "tool a\n|tool b\n|end"),
        ("tool a\n|tool b\n|tool c\n|end", "tool b\n|tool d\n|tool a\n|end"),
        ("one\n|two\n|one\n", "one\n |three\n|two\n"),
    ],
    ids=["left out", "added", "one replaced", "said before"],
)
def test_what_is_more_or_less_than_another_order_is_not_told_as_one(known, now):
    advice = explain("", known, now).advice
    assert ("another order" in advice) == ("tool d" in now)


def test_a_number_near_the_start_is_told_and_another_start_too():
    rest = "|".join(map(str, range(20)))
    assert "date, time or number" in explain("It is ", "Monday 3", "Tuesday 4", after=rest).advice
    assert "same order and words" in explain("It is ", "Monday", "Tuesday", after=rest).advice
    assert explain(rest, "Monday 3", "Tuesday 4").advice == ""
