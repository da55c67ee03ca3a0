"""The short way to write a schema, and the long ones."""

import pytest

from pinyon.app.errors import UsageError
from pinyon.app.schema_words import schema_of, schema_of_words
from pinyon.engine import grammar


def fields(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("name", fields(name={"type": "string"})),
        ("name, age int", fields(name={"type": "string"}, age={"type": "integer"})),
        (
            " a float ,b bool,, c str ",
            fields(a={"type": "number"}, b={"type": "boolean"}, c={"type": "string"}),
        ),
        ("city: where they live", fields(city={"type": "string", "description": "where they live"})),
        (
            "name: first, last\nage int: in years: whole\n",
            fields(
                name={"type": "string", "description": "first, last"},
                age={"type": "integer", "description": "in years: whole"},
            ),
        ),
    ],
)
def test_words_become_an_object_with_required_fields(words, expected):
    assert schema_of_words(words) == expected
    assert schema_of(words) == expected
    grammar.json_schema(schema_of(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "empty"),
        (" , ", "empty"),
        ("age integer", "'age integer'.*str, int, float, bool"),
        ("a b c", "'a b c'"),
        ("schemas/person", "'schemas/person'.*and there is no file of that name"),
        (": nothing", "': nothing'"),
        ("a, b, a int", "field a twice"),
        ('{"type": ', "the schema is not JSON"),
        ("missing.json", "missing.json cannot be read"),
        ("[" * 100_000, "a field is"),
        ('{"a":' * 100_000, "not JSON"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_schema_is_refused(words, message):
    with pytest.raises(UsageError, match=message):
        schema_of(words)


def test_json_and_files_are_taken_as_they_are(tmp_path):
    schema = '{"type": "array", "items": {"type": "integer"}}'
    expected = {"type": "array", "items": {"type": "integer"}}
    assert schema_of(schema) == expected
    (tmp_path / "numbers").write_text(schema)
    assert schema_of(str(tmp_path / "numbers")) == expected
    (tmp_path / "bad.json").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"bad\.json is not JSON"):
        schema_of(str(tmp_path / "bad.json"))
