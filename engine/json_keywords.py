"""Which keywords of a JSON Schema are kept, and which of their values llguidance follows exactly."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias

from pinyon.engine.errors import InvalidRequestError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Keywords: TypeAlias = dict[str, Json]

MAX_PATTERN_BYTES: Final = 512
MAX_EXACT: Final = 2**53
"""llguidance computes in 64-bit floats: beyond this it would take one integer for another."""

SUBSCHEMA: Final = frozenset({"items", "additionalProperties"})
SUBSCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED_SUBSCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_COUNTS = frozenset("minLength maxLength minItems maxItems minProperties maxProperties".split())
_BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split())
_OTHERS = frozenset("type required pattern format $ref const enum multipleOf".split())
KEPT: Final = SUBSCHEMA | SUBSCHEMAS | NAMED_SUBSCHEMAS | _COUNTS | _BOUNDS | _OTHERS
"""The keywords that an answer is held to. Annotations and names that no standard knows are dropped."""

REFUSED: Final = frozenset(
    "not if then else contains minContains maxContains uniqueItems dependencies dependentRequired "
    "dependentSchemas unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef "
    "disallow divisibleBy extends".split()
)
"""The keywords, of any draft, that would restrict an answer and that llguidance cannot follow."""

_TYPES = frozenset("null boolean integer number string array object".split())

_LEAP_DAY = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = (r"^0{0,3}[1-9]", rf"^(?:[0-9]{{4}}-(?:0[13-9]|1[0-2]|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_DAY})")
_NO_LEAP_SECOND = r"^(?:[^.]*[Tt])?[0-9]{2}:[0-9]{2}:[0-5]"
_STRICTER_FORMATS = {
    "date": _DATE,
    "date-time": (*_DATE, _NO_LEAP_SECOND),
    "time": (_NO_LEAP_SECOND,),
    "hostname": (r"^.{1,253}$",),
}
"""Patterns for the formats of which llguidance lets impossible values pass, as 29 February of any year."""
_FORMATS = frozenset({*_STRICTER_FORMATS, "duration", "email", "ipv4", "ipv6", "uri", "uuid"})

# JSON Schema uses ECMAScript's regular expressions. llguidance's have nested classes, set operators and escapes of their own:
# what means one thing there and another here does not match this.
_ESCAPE = r"\\(?:[dDwWsSbBnrtfv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP]\{[\w=]+\}|[^\w\s])"
_PORTABLE_PATTERN = re.compile(rf"(?:[^\\\[]|{_ESCAPE}|\[\^?(?:(?!&&|--|~~)[^\\\[\]]|{_ESCAPE})+\])*")

_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")


def refused(at: str, name: str, why: str) -> InvalidRequestError:
    """Return the error that names a keyword and the JSON pointer of its schema."""
    return InvalidRequestError(f"JSON schema, {name!r} at {shown(at)}: {why}")


def joined(at: str, key: str) -> str:
    """Append a key to a JSON pointer (RFC 6901)."""
    return f"{at}/{key.replace('~', '~0').replace('/', '~1')}"


def shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_EXACT


def _is_exact_multiple(value: Json) -> bool:
    """Whether all validators agree on the multiples: 0.3 is no multiple of 0.1 for those that divide floats."""
    return _is_number(value) and isinstance(value, int | float) and value > 0 and Decimal(value) == Decimal(repr(value))


def _is_type(value: Json) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_local(value: Json) -> bool:
    return isinstance(value, str) and (value == "#" or value.startswith("#/"))


_ALLOWED: dict[str, tuple[Callable[[Json], bool], str]] = {
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number from 0 to 2^53")),
    **dict.fromkeys(_BOUNDS, (_is_number, "a number")),
    "multipleOf": (_is_exact_multiple, "a whole number above 0, or a fraction like 0.5 that floats hold exactly"),
    "type": (_is_type, f"{', '.join(sorted(_TYPES))}, or a list of these"),
    "required": (_is_names, "a list of strings"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "format": (lambda value: isinstance(value, str) and value in _FORMATS, ", ".join(sorted(_FORMATS))),
    "$ref": (_is_local, "a pointer into this document, like #/$defs/name, and the schema copied to there"),
}


def check_value(name: str, value: Json, at: str) -> None:
    """Check the value of a kept keyword that holds no schema. Raises InvalidRequestError."""
    if name in _ALLOWED:
        is_allowed, allowed = _ALLOWED[name]
        if not is_allowed(value):
            raise refused(at, name, f"is {shown(value)}; allowed: {allowed}")
    if name == "pattern":
        check_pattern(value, at, name)
    if name in {"const", "enum", "multipleOf", *_BOUNDS}:
        _check_exact(name, value, at)


def check_pattern(pattern: Json, at: str, name: str) -> None:
    """Check that a regular expression is short and means here what it means to JSON Schema."""
    if not isinstance(pattern, str):
        raise refused(at, name, "must be a string")
    size_bytes = len(pattern.encode())
    if size_bytes > MAX_PATTERN_BYTES:
        raise refused(at, name, f"the regular expression has {size_bytes:,} bytes, the limit is {MAX_PATTERN_BYTES}")
    if "\0" in pattern:
        raise refused(at, name, "the regular expression contains NUL")
    match = _PORTABLE_PATTERN.match(pattern)
    if match is not None and match.end() < len(pattern):
        rest = pattern[match.end() :]
        raise refused(
            at,
            name,
            f"the regular expression cannot be used from {shown(rest)!r} on: write it without nested "
            "classes, set operators and unusual escapes",
        )


def tighten_format(schema: Keywords) -> None:
    """Add to a schema what its format means beyond llguidance's own check."""
    patterns = _STRICTER_FORMATS.get(str(schema.get("format")), ())
    if patterns:
        others = schema.get("allOf", [])
        assert isinstance(others, list), "checked when it was kept"
        added: list[Json] = [{"pattern": pattern} for pattern in patterns]
        schema["allOf"] = others + added


def settle_min_properties(schema: Keywords, at: str) -> None:
    """Drop a minimum that `required` ensures; refuse one that repeated names could seem to reach."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    assert isinstance(least, int), "a checked count"
    assert isinstance(required, list), "a checked list"
    if least <= len(set(map(str, required))):
        schema.pop("minProperties", None)
    elif least > 1:
        raise refused(at, "minProperties", f"is {least}; more than 1 works only as far as names are in `required`")


def _check_exact(name: str, value: Json, at: str) -> None:
    """Refuse values in which llguidance would round a number, or that its strings cannot spell."""
    if isinstance(value, dict):
        for inner in value.values():
            _check_exact(name, inner, at)
    elif isinstance(value, list):
        for inner in value:
            _check_exact(name, inner, at)
    elif isinstance(value, int | float) and abs(value) > MAX_EXACT:
        raise refused(at, name, "has a number beyond 2^53, which cannot be compared exactly: use a smaller one")
    elif isinstance(value, str) and _UNWRITABLE.search(value):
        raise refused(at, name, "has a control character, which an answer cannot contain: remove it")
