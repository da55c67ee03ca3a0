import json

import jsonschema
import pytest
from grammar_walks import COMPILER, accepts, random_answer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.grammar import json_schema
from pinyon.engine.json_schema import MAX_DEPTH, MAX_NODES, enforceable


def is_valid(schema: object, answer: str | bytes) -> bool:
    # jsonschema's "time" is draft 3's, without an offset.
    checker = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "email", "uuid"])
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(answer))


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "null"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]}
POINTS = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"]}

HELD = [
    True,
    {},
    {"type": "object"},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {}},
    POINTS,
    {**POINTS, "additionalProperties": False},
    {**POINTS, "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {'a"b': True, "é\n": {"type": "null"}, "": False}, "required": ['a"b', "é\n"]},
    {"type": "object", "required": ["b"], "additionalProperties": {"type": "boolean"}},
    {"type": "object", "patternProperties": {"^a": {"type": "null"}, "^b": {"type": "boolean"}}},
    {"type": "object", "properties": {"ab": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 10}}},
    {"type": "object", "minProperties": 1},
    {"type": "object", "minProperties": 2, "required": ["a", "b"]},
    {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "null"}},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^\\d{3}$"},
    {"type": "string", "pattern": "\\S"},
    {"type": "string", "pattern": "^[a-c]+$", "maxLength": 4},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "pattern": "^ab?|b$", "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "ipv4", "pattern": "^1"},
    {"type": "integer", "minimum": 3, "maximum": 17},
    {"type": "integer", "minimum": -3, "exclusiveMaximum": 2.5},
    {"type": "integer", "multipleOf": 7, "maximum": 1000},
    {"type": "number", "minimum": 0.1, "maximum": 0.35},
    {"type": "number", "exclusiveMinimum": -0.25, "exclusiveMaximum": 0.25},
    {"type": "number", "minimum": -10, "maximum": 20, "multipleOf": 2.5},
    {"minimum": 5, "maxLength": 2},
    {"type": ["string", "null"], "maxLength": 2},
    {"const": {"a": [1, 2.5, "x"]}},
    {"const": 1e-7},
    {"enum": [1, 1.5, -2, 'quo"te', "line\nbreak", "\u2028é\U0001f600", None, True, [1, {"a": []}], {}]},
    {"enum": ["abc", "b"], "maxLength": 2},
    {"enum": [1, 2, 3.5], "type": "integer"},
    {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 2},
    {"type": "array", "uniqueItems": False},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
    {"type": "object", "propertyNames": {"enum": ["a", "b/~c"]}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]}, "required": ["b"]},
    {"type": "object", "propertyNames": {"enum": ["a", "a"]}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "additionalProperties": {"type": "boolean"}},
    {
        "items": {
            "type": "object",
            "propertyNames": {"enum": ["x", "y"]},
            "additionalProperties": {"$ref": "#/$defs/d"},
        },
        "type": "array",
        "maxItems": 2,
        "$defs": {"d": {"type": "array", "items": {"type": "null"}}},
    },
    {"allOf": [{"type": "integer"}, {"minimum": 3}], "maximum": 9},
    {"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"allOf": [{"additionalProperties": {"type": "integer"}}, {"patternProperties": {"^a": {"minimum": 5}}}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
            {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]},
        ]
    },
    {"$defs": {"p": {"type": "integer", "minimum": 3}}, "$ref": "#/$defs/p", "maximum": 6},
    {"$defs": {"a b/c": {"type": "null"}}, "$ref": "#/$defs/a%20b~1c"},
    TREE,
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}},
]


@pytest.mark.parametrize("schema", HELD, ids=str)
def test_answers_are_valid(schema: object) -> None:
    grammar = json_schema(schema)
    answers = [answer for seed in range(12) if (answer := random_answer(grammar, seed)) is not None]
    assert answers, "no walk ended"
    assert [answer for answer in answers if not is_valid(schema, answer)] == []


DRAFT_7 = [
    {"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "minItems": 2, "additionalItems": False},
    {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "items": {"type": "null"}, "additionalItems": False, "maxItems": 2},
    {"type": "array", "additionalItems": False, "maxItems": 2},
]


@pytest.mark.parametrize("schema", DRAFT_7, ids=str)
def test_tuples_of_draft_7_are_enforced(schema: dict[str, object]) -> None:
    answers = [answer for seed in range(12) if (answer := random_answer(json_schema(schema), seed)) is not None]
    assert answers, "no walk ended"
    assert [answer for answer in answers if not jsonschema.Draft7Validator(schema).is_valid(json.loads(answer))] == []


REFUSED = [
    ({"not": {"type": "string"}}, "not"),
    ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"contains": {"type": "null"}}, "contains"),
    ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"propertyNames": False}, "propertyNames"),
    ({"propertyNames": {"enum": ["a"], "maxLength": 3}}, "propertyNames"),
    ({"propertyNames": {"enum": ["a"]}, "properties": {"b": {}}}, "propertyNames"),
    ({"propertyNames": {"pattern": "[a&&b]"}}, "patternProperties"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"unevaluatedItems": False}, "unevaluatedItems"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"properties": {"a": {"$id": "https://example.com/a"}}}, "$id"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, "maxProperties"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "oneOf"),
    ({"oneOf": [{"properties": {"k": {"const": "x"}}}, {"properties": {"k": {"const": "y"}}}]}, "oneOf"),
    ({"type": "string", "format": "regex"}, "format"),
    ({"type": "text"}, "type"),
    ({"type": []}, "type"),
    ({"required": "a"}, "required"),
    ({"enum": []}, "enum"),
    ({"allOf": {}}, "allOf"),
    ({"properties": []}, "properties"),
    ({"minLength": -1}, "minLength"),
    ({"maxItems": True}, "maxItems"),
    ({"minimum": "3"}, "minimum"),
    ({"minimum": 4, "exclusiveMinimum": True}, "exclusiveMinimum"),
    ({"maximum": 2**53 + 1}, "maximum"),
    ({"const": [2**64]}, "const"),
    ({"enum": ["bell\x07"]}, "enum"),
    ({"multipleOf": 0}, "multipleOf"),
    ({"multipleOf": -2}, "multipleOf"),
    ({"multipleOf": 0.1}, "multipleOf"),
    ({"pattern": 3}, "pattern"),
    ({"pattern": "a" * 513}, "pattern"),
    ({"pattern": "a\0"}, "pattern"),
    ({"pattern": "("}, "pattern"),
    ({"pattern": "(" * 5000}, "pattern"),
    ({"pattern": "(?<=x)*"}, "pattern"),
    ({"pattern": r"(a)\1"}, "pattern"),
    ({"pattern": r"\q"}, "pattern"),
    ({"pattern": r"\A"}, "pattern"),
    ({"pattern": "[[a]b]"}, "pattern"),
    ({"pattern": "[a-z&&[b]]"}, "pattern"),
    ({"pattern": "[[:alpha:]]"}, "pattern"),
    ({"patternProperties": {"[[a]]": {}}}, "patternProperties"),
    ({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}}, "patternProperty"),
    ({"$ref": "#/$defs/missing"}, "$ref"),
    ({"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, "$ref"),
    ({"$ref": "#/x-other/a", "x-other": {"a": {}}}, "$ref"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "$ref"),
    ({"$ref": "file:///etc/passwd"}, "$ref"),
    ({"$ref": "other.json#/a"}, "$ref"),
    ({"$ref": 3}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
    ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum"),
    ({"const": "abc", "maxLength": 2}, "no JSON satisfies"),
    (False, "false"),
    ([], "object or a boolean"),
    ({"items": 3}, "object or a boolean"),
    ({"const": float("nan")}, "not valid JSON"),
    ({"const": "\ud800"}, "not valid JSON"),
    ({"const": 10**5000}, "not valid JSON"),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_what_an_answer_could_violate_is_refused_by_name(schema: object, named: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        COMPILER.compile(json_schema(schema))
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"\\u0061":"x"}'),
        ({"type": "object", "properties": {"a\n": {"type": "integer"}}}, '{"a\\u000a":"x"}'),
        (
            {"type": "object", "properties": {"ab": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 9}}},
            '{"ab":5}',
        ),
        ({"allOf": [{"additionalProperties": {"type": "null"}}, {"patternProperties": {"^a": True}}]}, '{"a":1}'),
        ({"type": "string", "format": "date"}, '"2023-02-29"'),
        ({"type": "string", "format": "date"}, '"1900-02-29"'),
        ({"type": "string", "format": "date"}, '"0000-01-01"'),
        ({"type": "string", "format": "date-time"}, '"2023-02-29T00:00:00Z"'),
        ({"type": "string", "format": "time"}, '"12:00:60Z"'),
        ({"type": "string", "format": "hostname"}, '"' + ".".join(["a" * 50] * 6) + '"'),
        ({"type": "number", "exclusiveMinimum": 0.5}, "0.50"),
        ({"const": {"a": 1}}, '{"a":1,"b":2}'),
        ({"type": "string"}, '"\\ud800"'),
        ({"x-guidance": {"lenient": True, "whitespace_pattern": "[ ]*"}, "type": "array"}, "[1,    2]"),
    ],
)
def test_an_invalid_answer_cannot_be_written(schema: object, answer: str) -> None:
    assert not accepts(json_schema(schema), answer)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "string", "format": "date"}, '"2000-02-29"'),
        ({"type": "string", "format": "date"}, '"2024-02-29"'),
        ({"type": "string", "format": "date"}, '"1990-12-31"'),
        ({"type": "string", "format": "date-time"}, '"2024-02-29T23:59:59.123+02:00"'),
        ({"type": "string", "format": "time"}, '"23:59:59Z"'),
        ({"type": "string", "format": "hostname"}, '"example.org"'),
        ({"type": "string"}, '"\U0001f600 é \\n \\\\ \\" /"'),
        (TREE, '{"v": 1, "next": {"v": 2, "next": {"v": 3}}}'),
    ],
)
def test_a_valid_answer_can_be_written(schema: object, answer: str) -> None:
    assert accepts(json_schema(schema), answer)


@pytest.mark.parametrize(
    "annotation",
    [
        {"title": "t", "description": "d", "default": 3, "examples": [1], "$comment": "c"},
        {"deprecated": True, "readOnly": True, "writeOnly": False},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/s"},
        {"x-foo": {"not": 1}, "nullable": True, "contentEncoding": "base64"},
        {"x-guidance": {"lenient": True}},
        {"default": 10**30},
    ],
)
def test_annotations_and_unknown_names_change_nothing(annotation: dict[str, object]) -> None:
    assert enforceable({**POINTS, **annotation}) == POINTS


def test_names_of_keywords_may_be_names_of_properties() -> None:
    schema = {"type": "object", "properties": {"not": {"type": "null"}, "$ref": {"const": 1}}, "required": ["not"]}
    assert enforceable(schema) == schema


def test_properties_keep_their_order() -> None:
    schema = {"type": "object", "properties": {"z": True, "a": True}, "required": ["a", "z"]}
    assert accepts(json_schema(schema), '{"z":1,"a":2}')
    assert not accepts(json_schema(schema), '{"a":2,"z":1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_recursion_without_end_is_refused(schema: object) -> None:
    with pytest.raises(InvalidRequestError, match="never ends"):
        json_schema(schema)


def test_sizes_are_bounded_before_anything_recurses() -> None:
    deepest = MAX_DEPTH - 2  # the document, and the value of "type"
    json_schema(nested(deepest))
    with pytest.raises(InvalidRequestError, match="nested more than 32 levels"):
        json_schema(nested(deepest + 1))
    with pytest.raises(InvalidRequestError, match="nested more than 32 levels"):
        json_schema(nested(10_000))
    json_schema({"enum": list(range(MAX_NODES - 2))})
    with pytest.raises(InvalidRequestError, match="more than 2,000 values"):
        json_schema({"enum": list(range(MAX_NODES - 1))})
    with pytest.raises(InvalidRequestError, match="more than 2,000 values"):
        json_schema({"enum": [str(number) for number in range(10_000)]})
    with pytest.raises(InvalidRequestError, match=r"65,5\d\d bytes, the limit is 65,536"):
        json_schema({"description": "d" * (64 << 10)})
    with pytest.raises(InvalidRequestError, match="more than 2,000 values"):
        json_schema(_containing_itself())


def _containing_itself() -> list[object]:
    schema: list[object] = []
    schema += [schema, schema]
    return schema


@pytest.mark.parametrize("bound", [2001, 10_000])
def test_large_bounds_are_not_expanded(bound: int) -> None:
    short = json_schema({"type": "string", "maxLength": bound})
    assert accepts(short, '"' + "x" * bound + '"')
    assert not accepts(short, '"' + "x" * (bound + 1) + '"')
    many = json_schema({"type": "array", "maxItems": bound, "items": {"type": "integer"}})
    assert accepts(many, "[" + ",".join("1" * bound) + "]")


small = st.integers(-3, 12)
names = st.sampled_from(["a", "b", "ab"])
values = st.recursive(
    st.none() | st.booleans() | small | st.sampled_from([0.5, -1.25, 2.0]) | st.text('ab"\n\\é', max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


def _schemas_over(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    few = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(names, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", ["object", "null"], ["array", "string"]]),
            "properties": named,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "additionalProperties": inner,
            "propertyNames": st.fixed_dictionaries({"enum": st.lists(names, max_size=3)})
            | st.just({"type": "string", "pattern": "^a"}),
            "required": st.lists(names, max_size=2),
            "minProperties": st.integers(0, 1),
            "maxProperties": st.integers(0, 3),
            "items": inner,
            "prefixItems": few,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
            "allOf": few,
            "anyOf": few,
            "oneOf": few,
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]),
        },
    )


leaves = st.booleans() | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean", "null", ["integer", "string"]]),
        "const": values,
        "enum": st.lists(values, min_size=1, max_size=3),
        "minimum": small,
        "maximum": small | st.sampled_from([2.5, 7.75]),
        "exclusiveMinimum": small,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 2.5]),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 4),
        "pattern": st.sampled_from(["^a", "b$", "^[ab]*$", "a|b"]),
    },
)
documents = st.builds(
    lambda schema, defs: {**schema, "$defs": defs} if isinstance(schema, dict) else schema,
    st.recursive(leaves, _schemas_over, max_leaves=6),
    st.fixed_dictionaries({"a": leaves, "b": leaves | _schemas_over(leaves)}),
)


@settings(max_examples=100, deadline=None)
@given(schema=documents, seed=st.integers(0, 1000))
def test_answers_to_any_schema_are_valid_or_it_is_refused(schema: object, seed: int) -> None:
    try:
        grammar = json_schema(schema)
        COMPILER.compile(grammar)
    except InvalidRequestError:
        assume(False)
    for offset in range(3):
        answer = random_answer(grammar, seed + offset, max_tokens=120)
        try:
            assert answer is None or is_valid(schema, answer), answer
        except RecursionError:  # the validator follows a schema that is an alternative of itself for ever
            assume(False)


def tagged(*tags: object) -> dict[str, object]:
    """A union of objects that are told apart by `kind`, by reference, as pydantic writes it."""
    kinds = {
        f"K{number}": {"type": "object", "properties": {"kind": tag, "n": {"type": "integer"}}, "required": ["kind"]}
        for number, tag in enumerate(tags)
    }
    return {"$defs": kinds, "oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds]}


def test_a_union_told_apart_by_a_constant_is_enforced() -> None:
    schema = tagged({"const": "cat"}, {"enum": ["dog", "wolf"]})
    constraint = json_schema(schema)
    for seed in range(8):
        assert is_valid(schema, random_answer(constraint, seed))
    assert accepts(constraint, '{"kind": "wolf", "n": 1}')
    assert not accepts(constraint, '{"kind": "cow"}')


@pytest.mark.parametrize("tags", [({"const": "cat"}, {"const": "cat"}), ({"const": "cat"}, {"type": "string"})])
def test_alternatives_that_overlap_stay_exclusive(tags: tuple[object, ...]) -> None:
    assert "oneOf" in enforceable(tagged(*tags))
