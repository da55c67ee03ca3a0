from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes import BOS, SPECIAL, ByteTable
from grammar_walks import COMPILER, EOG, ByteVocabulary

from pinyon.engine.constraint import Constraint, GrammarCompiler
from pinyon.engine.errors import InvalidRequestError, NativeError
from pinyon.engine.grammar import json_object, json_schema, lark, regex
from pinyon.engine.native import Model, NativeLog, Vocabulary
from pinyon.engine.request import Grammar


def started(grammar: Grammar, text: str = "") -> Constraint:
    constraint = COMPILER.compile(grammar)
    for byte in text.encode():
        constraint.accept(byte)
    return constraint


def allowed(constraint: Constraint) -> set[int]:
    return set(np.flatnonzero(np.isfinite(constraint.mask(np.zeros(ByteTable.size, np.float32)))).tolist())


def test_a_mask_leaves_the_logits_of_what_may_follow() -> None:
    logits = np.arange(ByteTable.size, dtype=np.float32)
    masked = started(regex("(a|b)c")).mask(logits)
    assert {token: masked[token] for token in np.flatnonzero(masked > -np.inf)} == {ord("a"): 97, ord("b"): 98}
    assert (logits == np.arange(ByteTable.size)).all(), "the model's own logits stay"


def test_extra_tokens_stay_possible() -> None:
    logits = np.arange(ByteTable.size, dtype=np.float32)
    masked = started(regex("a")).mask(logits, extra=[BOS, 7])
    assert np.flatnonzero(masked > -np.inf).tolist() == [7, ord("a"), BOS]
    assert masked[7] == 7


def test_a_damaged_logit_shows_through_the_mask() -> None:
    assert np.isnan(started(regex("a")).mask(np.full(ByteTable.size, np.nan, np.float32))).all()


def test_where_the_answer_may_end_every_end_token_is_allowed() -> None:
    constraint = started(regex("ab*"), "a")
    assert allowed(constraint) == {ord("b"), *EOG}
    assert not constraint.is_complete
    constraint.accept(EOG[1])


def test_an_answer_is_complete_when_nothing_can_follow() -> None:
    constraint = started(json_object(), '{"a":1')
    assert not constraint.is_complete
    constraint.accept(ord("}"))
    assert constraint.is_complete
    assert allowed(constraint) == set(EOG)


def test_control_tokens_are_never_reached_through_their_spelling() -> None:
    anything = allowed(started(regex("(?s:.*)")))
    assert anything & set(SPECIAL) == set(EOG)
    assert {ord("<"), ord("a")} <= anything
    assert allowed(started(lark('start: "<s>"'))) == {ord("<")}


def test_a_copy_goes_its_own_way() -> None:
    first = started(regex("(a|b)c"))
    second = first.copy()
    first.accept(ord("a"))
    assert (allowed(first), allowed(second)) == ({ord("c")}, {ord("a"), ord("b")})
    first.close()
    second.accept(ord("b"))
    assert allowed(second) == {ord("c")}


def test_several_answers_follow_one_grammar_independently() -> None:
    first, second = started(regex("abc"), "a"), started(regex("abc"), "ab")
    assert (allowed(first), allowed(second)) == ({ord("b")}, {ord("c")})


def test_a_token_outside_the_grammar_is_an_error_that_stays() -> None:
    constraint = started(regex("abc"), "a")
    with pytest.raises(NativeError, match="cannot follow its grammar"):
        constraint.accept(ord("x"))
    with pytest.raises(NativeError, match="cannot follow its grammar"):
        allowed(constraint)
    assert not constraint.is_complete


def test_text_is_accepted_wherever_it_stands() -> None:
    constraint = started(json_object())
    constraint.accept_text('{"é'.encode())
    constraint.accept_text("é".encode()[:1])
    constraint.accept_text("é".encode()[1:] + b'":1}')
    assert constraint.is_complete
    with pytest.raises(NativeError, match="cannot follow its grammar"):
        started(json_object()).accept_text(b"Sure! {")


def test_a_dead_end_is_an_error_and_no_end_of_the_answer() -> None:
    constraint = started(lark('start: "a" x\nx: x "b"'), "a")
    with pytest.raises(InvalidRequestError, match="cannot be completed: correct the grammar") as caught:
        allowed(constraint)
    assert caught.value.param == "grammar"
    assert not constraint.is_complete


def test_a_limit_that_the_grammar_runs_into_is_the_client_s_to_mend() -> None:
    ways = " | ".join(" ".join("x" * count) for count in range(2, 25))
    constraint = COMPILER.compile(lark(f'start: x\nx: "a" | {ways}'))
    with pytest.raises(InvalidRequestError, match="too complex: simplify the grammar") as caught:
        constraint.accept_text(b"a" * 50)
    assert caught.value.param == "grammar"


@pytest.mark.parametrize("source", ["start: x\nx: y\ny: x", 'start: x\nx: x "a"'])
def test_a_grammar_without_texts_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="no text matches"):
        COMPILER.compile(lark(source))


def test_a_closed_constraint_cannot_be_used() -> None:
    constraint = started(json_object())
    constraint.close()
    constraint.close()
    for use in (lambda: allowed(constraint), lambda: constraint.accept(1), lambda: constraint.is_complete):
        with pytest.raises(NativeError, match="was closed"):
            use()


def test_the_vocabulary_is_read_once_and_only_when_needed() -> None:
    class Counted(ByteVocabulary):
        reads = 0

        def llguidance_tokenizer(self, eog):
            self.reads += 1
            return super().llguidance_tokenizer(eog)

    vocabulary = Counted()
    compiler = GrammarCompiler(vocabulary, EOG)
    assert vocabulary.reads == 0
    compiler.compile(json_object())
    compiler.compile(regex("a"))
    assert vocabulary.reads == 1


@pytest.fixture(scope="module")
def smollm2_vocabulary(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    with (tmp_path_factory.mktemp("log") / "native.log").open("w") as stream:
        model = Model(smollm2, NativeLog(stream), lambda _progress: True)
        yield model.vocabulary
        model.close()


@pytest.mark.model
def test_a_real_vocabulary_follows_a_schema(smollm2_vocabulary: Vocabulary) -> None:
    vocabulary = smollm2_vocabulary
    eog = [token for token in range(vocabulary.size) if vocabulary.is_eog(token)]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    constraint = GrammarCompiler(vocabulary, eog).compile(json_schema(schema))
    zeros = np.zeros(vocabulary.size, np.float32)
    for token in vocabulary.tokenize('{"name": "<|im_start|>é'.encode(), parse_special=False):
        assert np.isfinite(constraint.mask(zeros)[token])
        constraint.accept(token)
    may_follow = set(np.flatnonzero(np.isfinite(constraint.mask(zeros))).tolist())
    assert not may_follow & set(vocabulary.special_tokens().control), "inside a string neither an end nor another turn"
    constraint.accept_text(b'."}')
    assert constraint.is_complete
    assert set(np.flatnonzero(np.isfinite(constraint.mask(zeros))).tolist()) == set(eog)


@pytest.mark.model
def test_a_real_vocabulary_hides_control_tokens_from_grammars(smollm2_vocabulary: Vocabulary) -> None:
    vocabulary = smollm2_vocabulary
    assert vocabulary.eos is not None
    tokenizer = vocabulary.llguidance_tokenizer([vocabulary.eos])
    special = vocabulary.special_tokens()
    assert all(tokenizer.is_special_token(token) for token in special.control)
    text = "It's é 😀\n  fine".encode()
    assert tokenizer.decode_bytes(vocabulary.tokenize(text, parse_special=False)) == text
