"""Which JSON Schemas (draft 2020-12) an answer can be held to.

llguidance turns a schema into a grammar. What it would read more loosely than the standard is refused here by name, so that
an answer that ends is valid. Nothing here opens a file or a socket: `$ref` reaches only into the document.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.json_keywords import (
    KEPT,
    NAMED_SUBSCHEMAS,
    REFUSED,
    SUBSCHEMA,
    SUBSCHEMAS,
    Json,
    Keywords,
    check_pattern,
    check_value,
    joined,
    refused,
    settle_min_properties,
    shown,
    tighten_format,
)
from pinyon.engine.json_rewrites import rewritten

MAX_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 32
MAX_NODES: Final = 2000


def enforceable(schema: object) -> Keywords:
    """Return the schema without annotations.

    Raises:
        InvalidRequestError: it is too large, is no schema, or has something that an answer could violate.
    """
    _check_size(schema)
    if schema is False:
        raise InvalidRequestError("the JSON schema `false` allows no answer: give a schema that allows one")
    document = _Document()
    kept = document.keep({} if schema is True else schema, "#")
    document.check_references()
    document.check_ends()
    document.tighten_formats()
    document.open_tagged_unions()
    assert isinstance(kept, dict), "only booleans stay booleans"
    return kept


def _check_size(schema: object) -> None:
    """Bound the schema, level by level, before anything recurses into it."""
    nodes, depth = 0, 0
    level = [schema]
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if nodes > MAX_NODES:
            raise InvalidRequestError(f"the JSON schema has more than {MAX_NODES:,} values: shorten its lists")
        if depth > MAX_DEPTH:
            raise InvalidRequestError(
                f"the JSON schema is nested more than {MAX_DEPTH} levels deep: move inner schemas to $defs"
            )
        level = [child for value in level for child in _children(value)]
    try:
        size_bytes = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:  # NaN, lone surrogates, integers of thousands of digits
        raise InvalidRequestError(f"the JSON schema is not valid JSON: {error}") from None
    if size_bytes > MAX_BYTES:
        raise InvalidRequestError(f"the JSON schema has {size_bytes:,} bytes, the limit is {MAX_BYTES:,}: shorten it")


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class _Document:
    """The schemas of one document by JSON pointer."""

    def __init__(self) -> None:
        self._schemas: dict[str, Keywords | bool] = {}

    def keep(self, schema: object, at: str) -> Keywords | bool:
        """Return a copy of a schema, checked, with the kept keywords in their order; llguidance writes in that order."""
        if not isinstance(schema, dict | bool):
            raise InvalidRequestError(
                f"JSON schema, {shown(at)}: is {shown(schema)}; a schema is an object or a boolean"
            )
        kept: Keywords | bool = schema if isinstance(schema, bool) else self._keep_keywords(schema, at)
        self._schemas[at] = kept
        return kept

    def _keep_keywords(self, schema: Keywords, at: str) -> Keywords:
        schema = rewritten(schema, at)
        for name, value in schema.items():
            if name in REFUSED and (name, value) != ("uniqueItems", False):
                raise refused(at, name, "is not supported: remove it, or ask for it in the prompt")
        if at != "#" and "$id" in schema:
            raise refused(at, "$id", "changes what $ref means inside a document: remove it")
        kept = {name: self._keyword(name, value, at) for name, value in schema.items() if name in KEPT}
        settle_min_properties(kept, at)
        return kept

    def _keyword(self, name: str, value: Json, at: str) -> Json:
        inner = f"{at}/{name}"
        if name in SUBSCHEMA:
            return self.keep(value, inner)
        if name in SUBSCHEMAS:
            if not isinstance(value, list):
                raise refused(at, name, "must be a list of schemas")
            return [self.keep(item, f"{inner}/{number}") for number, item in enumerate(value)]
        if name in NAMED_SUBSCHEMAS:
            if not isinstance(value, dict):
                raise refused(at, name, "must be an object whose values are schemas")
            if name == "patternProperties":
                for pattern in value:
                    check_pattern(pattern, at, name)
            return {key: self.keep(item, joined(inner, key)) for key, item in value.items()}
        check_value(name, value, at)
        return value

    def check_references(self) -> None:
        for at, schema in self._schemas.items():
            if isinstance(schema, dict) and "$ref" in schema and _target(schema) not in self._schemas:
                raise refused(at, "$ref", f"is {shown(schema['$ref'])}, and there is no schema: correct the pointer")

    def check_ends(self) -> None:
        """Refuse schemas whose every value would contain another of the same kind, for ever.

        The least fixed point: a schema has finite values once enough of the schemas it needs are known to have.
        """
        needs = {at: list(_needs(at, schema)) for at, schema in self._schemas.items() if isinstance(schema, dict)}
        needed_by = defaultdict(list)
        for at, choices in needs.items():
            for choice in choices:
                for inner in choice:
                    needed_by[inner].append(at)
        finite = {at for at, schema in self._schemas.items() if isinstance(schema, bool)}
        waiting = list(needs)
        while waiting:
            at = waiting.pop()
            if at not in finite and all(not finite.isdisjoint(choice) for choice in needs[at]):
                finite.add(at)
                waiting += needed_by[at]
        for at in needs:
            if at not in finite:
                name = "$ref" if "$ref" in self._keywords(at) else "required"
                raise refused(at, name, "the recursion never ends: make one step of it optional")

    def tighten_formats(self) -> None:
        for schema in self._schemas.values():
            if isinstance(schema, dict):
                tighten_format(schema)

    def open_tagged_unions(self) -> None:
        """Write anyOf for oneOf where a property tells the alternatives apart: llguidance sees that only without $ref."""
        for at, schema in self._schemas.items():
            if isinstance(schema, dict) and "oneOf" in schema and "anyOf" not in schema and self._is_tagged(at, schema):
                renamed = {"anyOf" if name == "oneOf" else name: value for name, value in schema.items()}
                schema.clear()
                schema.update(renamed)

    def _is_tagged(self, at: str, schema: Keywords) -> bool:
        """Whether every alternative is an object that must have one property with constants of its own."""
        alternatives = [self._resolved(f"{at}/oneOf/{number}") for number in range(_length(schema, "oneOf"))]
        tags = [_tags(alternative) for alternative in alternatives]
        for name in set.intersection(*(set(found) for found in tags)) if tags else ():
            values = [value for found in tags for value in found[name]]
            if len(set(values)) == len(values):
                return True
        return False

    def _resolved(self, at: str) -> Keywords:
        """Follow references; an empty schema for what leads round in a circle."""
        seen: set[str] = set()
        while "$ref" in (schema := self._keywords(at)):
            if at in seen:
                return {}
            seen.add(at)
            at = _target(schema)
        return schema

    def _keywords(self, at: str) -> Keywords:
        schema = self._schemas[at]
        return schema if isinstance(schema, dict) else {}


def _tags(schema: Keywords) -> dict[str, list[str]]:
    """Return the required properties of an object that can only be certain strings, and those strings."""
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    found = {}
    for name in map(str, required):
        about = properties.get(name)
        values = (about.get("enum") or [about.get("const")]) if isinstance(about, dict) else []
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            found[name] = [str(value) for value in values]
    return found


def _needs(at: str, schema: Keywords) -> Iterator[list[str]]:
    """Yield choices of pointers: of each at least one must have finite values, else the schema has none."""
    if "const" in schema or "enum" in schema:
        return
    if "$ref" in schema:
        yield [_target(schema)]
    for name in ("anyOf", "oneOf"):
        if name in schema:
            yield [f"{at}/{name}/{number}" for number in range(_length(schema, name))]
    for number in range(_length(schema, "allOf")):
        yield [f"{at}/allOf/{number}"]
    if schema.get("type") in ("object", ["object"]):
        yield from _needs_of_object(at, schema)
    if schema.get("type") in ("array", ["array"]):
        yield from _needs_of_array(at, schema)


def _needs_of_object(at: str, schema: Keywords) -> Iterator[list[str]]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    assert isinstance(properties, dict), "checked when it was kept"
    assert isinstance(required, list), "checked when it was kept"
    for name in map(str, required):
        if name in properties:
            yield [joined(f"{at}/properties", name)]
        elif "additionalProperties" in schema and "patternProperties" not in schema:
            yield [f"{at}/additionalProperties"]


def _needs_of_array(at: str, schema: Keywords) -> Iterator[list[str]]:
    least, prefix = schema.get("minItems", 0), _length(schema, "prefixItems")
    assert isinstance(least, int), "a checked count"
    for number in range(min(least, prefix)):
        yield [f"{at}/prefixItems/{number}"]
    if least > prefix and "items" in schema:
        yield [f"{at}/items"]


def _length(schema: Keywords, name: str) -> int:
    value = schema.get(name, [])
    return len(value) if isinstance(value, list) else 0


def _target(schema: Keywords) -> str:
    return unquote(str(schema["$ref"]))
