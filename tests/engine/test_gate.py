import numpy as np
import pytest
from fakes import END_OF_TURN, EOS, ByteTable, LiteralConstraint

from pinyon.engine.errors import NativeError
from pinyon.engine.gate import Gate
from pinyon.engine.request import Grammar, Reasoning
from pinyon.engine.text_stream import TextStream

OPENED = Reasoning("<think>", ("</think>",), opened=True)
MAY_THINK = Reasoning("<think>", ("</think>",))
OPENING = list(b"<think>")


class Answer:
    """A gate with its text stream, fed as a sequence does; a token stands for any bytes."""

    def __init__(self, literal, tags=OPENED, *, stops=(), opening=()):
        self.text = TextStream(stops, tags)
        self.gate = Gate(LiteralConstraint(Grammar(literal)), self.text, opening, [EOS, END_OF_TURN])
        self.shown = ""

    def take(self, *tokens):
        for token in tokens:
            data = token if isinstance(token, bytes) else bytes([token])
            self.shown += self.text.push(data).text
            self.gate.take(data[0])
        return self

    def allowed(self):
        return set(np.flatnonzero(np.isfinite(self.gate.allowed(np.zeros(ByteTable.size, np.float32)))).tolist())

    def finished(self):
        return self.gate.is_complete, self.shown + self.text.flush().text


def test_thoughts_are_free_but_cannot_end_the_turn():
    answer = Answer("{}").take(*b"hm")
    logits = np.arange(ByteTable.size, dtype=np.float32)
    allowed = answer.gate.allowed(logits)
    assert np.flatnonzero(np.isinf(allowed)).tolist() == [EOS, END_OF_TURN]
    assert (np.delete(allowed, [EOS, END_OF_TURN]) == np.delete(logits, [EOS, END_OF_TURN])).all()
    assert (logits == np.arange(ByteTable.size)).all(), "the model's own logits stay"


def test_a_damaged_logit_shows_in_thoughts():
    assert np.isnan(Answer("{}").gate.allowed(np.full(ByteTable.size, np.nan, np.float32))).all()


def test_the_grammar_begins_after_the_end_of_thoughts():
    answer = Answer("{}").take(*b"hm</think>")
    assert answer.allowed() == {ord("{")}
    assert answer.take(*b"{}").finished() == (True, "{}")


def test_an_answer_may_begin_with_thoughts_whose_tag_is_finished():
    answer = Answer("{}", MAY_THINK, opening=OPENING)
    assert answer.allowed() == {ord("{"), ord("<")}
    assert answer.take(ord("<")).allowed() == {ord("t")}
    assert answer.take(*b"think>hm</think>").allowed() == {ord("{")}


@pytest.mark.parametrize("token", [b">{", b">\n\n{", b"> {"])
def test_what_stands_behind_the_end_tag_in_one_token_is_the_answer_s(token):
    answer = Answer('{"a"}').take(*b"hm</think", token)
    assert answer.allowed() == {ord('"')}
    assert answer.take(*b'"a"}').finished() == (True, '{"a"}')


def test_white_space_behind_the_end_tag_in_one_token_is_not_the_answer_s():
    answer = Answer("{}").take(*b"hm</think", b">\n")
    assert answer.allowed() == {ord("{")}
    assert answer.take(*b"{}").finished() == (True, "{}")


def test_a_stop_string_that_may_be_forming_behind_the_end_tag_is_the_grammar_s_too():
    answer = Answer("{{}", stops=("{{{",)).take(*b"hm</think", b">{")
    assert answer.shown == "", "held back"
    assert answer.allowed() == {ord("{")}
    assert answer.take(*b"{}").finished() == (True, "{{}")


def test_half_a_character_behind_the_end_tag_is_the_grammar_s_too():
    first, rest = "é".encode()[:1], "é".encode()[1:]
    answer = Answer("éa").take(*b"hm</think", b">" + first)
    assert answer.allowed() == set(rest)
    assert answer.take(*rest, ord("a")).finished() == (True, "éa")


@pytest.mark.parametrize("literal", ["<a>", "</think>a", "<think>a"])
def test_a_tag_that_may_be_forming_behind_the_end_tag_is_the_grammar_s_too(literal):
    answer = Answer(literal).take(*b"hm</think", b"><")
    assert answer.allowed() == {literal.encode()[1]}
    assert answer.take(*literal.encode()[1:]).finished() == (True, literal)


@pytest.mark.parametrize("literal", ["\n a", "</think>a", "<think>a"])
def test_all_that_the_grammar_took_is_shown(literal):
    assert Answer(literal).take(*b"hm</think>", *literal.encode()).finished() == (True, literal)
    assert Answer(literal, MAY_THINK).take(*literal.encode()).finished() == (True, literal)


def test_a_rest_of_a_token_that_does_not_fit_is_an_error():
    with pytest.raises(NativeError, match="does not fit"):
        Answer("{}").take(*b"hm</think", b">Sure")
