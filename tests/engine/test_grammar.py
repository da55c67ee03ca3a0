import json
import re

import numpy as np
import pytest
from fakes import ByteTable
from grammar_walks import COMPILER, accepts, random_answer

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.grammar import MAX_NESTING, gbnf, json_object, json_schema, lark, regex


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a":1,"b":[true,null]}',
        '{"a": 1, "b": [true, null]}',
        '{\n  "a": {\n    "b": [\n      1,\n      2\n    ]\n  }\n}',
        '{\n\t"a": {\n\t\t"b": "c"\n\t}\n}',
    ],
)
def test_json_may_be_printed_in_the_usual_ways(text: str) -> None:
    assert accepts(json_object(), text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "1",
        ' {"a":1}',
        '{"a":1}\n',
        '{  "a":1}',
        '{"a":1,\n\n"b":2}',
        "{\n" + " " * 33 + "}",
        '{"a":\t1}',
        "{\r\n}",
    ],
)
def test_json_cannot_be_stretched_with_blanks(text: str) -> None:
    assert not accepts(json_object(), text)


def test_a_model_that_loves_blanks_comes_to_an_end() -> None:
    constraint = COMPILER.compile(json_schema({"type": "array", "minItems": 3, "maxItems": 3, "items": {"const": 1}}))
    logits = np.zeros(ByteTable.size, np.float32)
    logits[list(b" \n\t")] = 1
    answer = bytearray()
    while not constraint.is_complete:
        answer.append(int(constraint.mask(logits).argmax()))
        constraint.accept(answer[-1])
        assert len(answer) < 400
    assert json.loads(answer) == [1, 1, 1]


def test_a_regex_is_matched_as_a_whole() -> None:
    grammar = regex("(yes|no)/[0-9]{1,2}\n")
    assert accepts(grammar, "yes/42\n")
    assert not accepts(grammar, "yes/42")
    assert not accepts(grammar, "oh yes/42\n")
    assert accepts(regex(r"a\/b"), "a/b")
    assert accepts(regex('"é"'), '"é"')


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.?a){5}", "^a|b$", "(x?){9}x{9}", "a{30}"])
def test_answers_match_the_regex(pattern: str) -> None:
    answers = [answer for seed in range(9) if (answer := random_answer(regex(pattern), seed)) is not None]
    assert answers
    assert all(re.fullmatch(pattern, answer.decode()) for answer in answers)


@pytest.mark.parametrize("pattern", ["(x?){30}x{30}", "(.*a){30}", "(x+x+)+y", "(a|aa)+$"])
def test_patterns_on_which_backtracking_engines_hang_do_not(pattern: str) -> None:
    grammar = regex(pattern)
    assert accepts(grammar, "x" * 45) == (pattern == "(x?){30}x{30}")
    assert accepts(grammar, "a" * 45) == ("a" in pattern)


@pytest.mark.parametrize("pattern", ["(?<=x)*", "(" * 200, r"\q", "[", r"(a)\1", "a{2,1}"])
def test_a_broken_pattern_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(InvalidRequestError, match="regular expression"):
        COMPILER.compile(regex(pattern))


def test_a_lark_grammar() -> None:
    grammar = lark('start: "(" start ")" | WORD\nWORD: /[a-z]+/\n')
    assert accepts(grammar, "((abc))")
    assert not accepts(grammar, "((abc)")


@pytest.mark.parametrize("make", [lark, gbnf, regex])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("a\0", "contains NUL"),
        ("\ud800", "not valid Unicode"),
        ("a" * ((64 << 10) + 1), "65,537 bytes, the limit is"),
    ],
)
def test_text_that_is_no_grammar_is_refused(make, source: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        make(source)


def test_a_regex_is_short() -> None:
    regex("a" * 512)
    with pytest.raises(InvalidRequestError, match="513 bytes, the limit is 512"):
        regex("a" * 513)


@pytest.mark.parametrize(("make", "head"), [(lark, "start: "), (gbnf, "root ::= ")])
@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 13_000, 25_000])
def test_nesting_is_counted_before_anything_recurses(make, head: str, depth: int) -> None:
    make(head + "(" * MAX_NESTING + '"a"' + ")" * MAX_NESTING)
    with pytest.raises(InvalidRequestError, match="nested more than 200 levels"):
        make(head + "(" * depth + '"a"' + ")" * depth)


@pytest.mark.parametrize("hidden", ['")" ', "[)] ", "# )\n"])
def test_brackets_in_literals_hide_no_nesting(hidden: str) -> None:
    with pytest.raises(InvalidRequestError, match="nested more than 200 levels"):
        gbnf("root ::= " + f"({hidden}" * 201)


def test_brackets_in_literals_count_as_no_nesting() -> None:
    gbnf("root ::= " + r'"(\"(" [([{] ' * 300)
    lark("start: " + r'"(" /[({]/ ' * 300)


@pytest.mark.parametrize("source", ['start: %json {"not": {}}', "start: a\na: %json true"])
def test_a_schema_inside_lark_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="%json"):
        lark(source)


def test_lark_is_never_taken_for_llguidances_json() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        COMPILER.compile(lark('{"grammars": [{"json_schema": {"not": {}, "x-guidance": {"lenient": true}}}]}'))
