"""What `--schema` takes: a file, JSON itself, or a few words as in 'name, age int'. Comes out as JSON Schema."""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from pinyon.app.errors import UsageError
from pinyon.models.disk import printable

_TYPES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_NAME: Final = re.compile(r"[\w-]+")


def schema_of(words: str) -> object:
    """Return the JSON Schema that is meant: JSON where it starts with a brace, a file where there is one, else words.

    Raises:
        UsageError: it is none of these; the message says what is wrong.
    """
    if words.lstrip().startswith("{"):
        return _parsed(words.encode(errors="surrogatepass"), "the schema")
    if words.endswith(".json") or os.path.isfile(words):  # noqa: PTH113  words may be no path at all
        try:
            return _parsed(Path(words).read_bytes(), printable(words))
        except OSError as error:
            raise UsageError(f"the schema {printable(words)} cannot be read: {error.strerror}") from None
    return schema_of_words(words)


def schema_of_words(words: str) -> dict[str, object]:
    """Return the schema of an object with these fields, all of them required.

    Fields are separated by commas, or stand on lines of their own. Each is a name, then maybe its type (str, int, float
    or bool; str where none is given), then maybe a colon and what it means: 'name, age int, city: where they live'.

    Raises:
        UsageError: no field, an unknown type, or a name that comes twice.
    """
    properties: dict[str, object] = {}
    for field in filter(None, map(str.strip, words.split("\n" if "\n" in words.strip() else ","))):
        declared, _, meaning = field.partition(":")
        name, *kind = declared.split() or [""]
        if not _NAME.fullmatch(name) or len(kind) > 1 or (kind and kind[0] not in _TYPES):
            raise UsageError(
                f"the schema has {field[:60]!r}: a field is 'NAME', or 'NAME TYPE' with {', '.join(_TYPES)}; and there is no file of that name"
            )
        if name in properties:
            raise UsageError(f"the schema has the field {name} twice")
        property_: dict[str, object] = {"type": _TYPES[kind[0] if kind else "str"]}
        properties[name] = {**property_, "description": meaning.strip()} if meaning.strip() else property_
    if not properties:
        raise UsageError("the schema is empty: name fields, as in 'name, age int', or give a file with JSON Schema")
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _parsed(data: bytes, name: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
