"""What an answer must look like: a JSON Schema, a regular expression or a grammar, as llguidance takes it.

Nothing native runs here. A grammar from outside goes through `grammar_check` before a worker compiles it (`constraint`).
"""

import json
import re
from typing import Final

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.json_keywords import Keywords
from pinyon.engine.json_schema import enforceable
from pinyon.engine.request import Grammar

MAX_SOURCE_BYTES: Final = 64 << 10
MAX_NESTING: Final = 200
MAX_REGEX_BYTES: Final = 512

_JSON_OPTIONS: Keywords = {
    # One space, or a line break and an indentation: enough to print prettily, and no model can go on with blanks for ever.
    "whitespace_pattern": " |\n[ \t]{0,32}",
    # Without \u: llguidance takes a name that is spelt with it for another name, on which the schema has no hold.
    "json_allowed_escapes": 'nrbtf\\"',
}

# Literals and comments come first, so that brackets in them do not count.
_LITERAL = r'"(?:\\.|[^"\\\n])*"'
_LARK_TOKEN = re.compile(rf"{_LITERAL}|//.*|/(?:\\.|[^/\\\n])+/|%json\b|[()\[\]{{}}]")
_GBNF_TOKEN = re.compile(rf"{_LITERAL}|\#.*|\[(?:\\.|[^\]\\])*\]|[(){{}}]")


def json_object() -> Grammar:
    """Return the grammar of any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: object) -> Grammar:
    """Return the grammar of JSON that is valid under a schema, which comes as parsed JSON: an object or a boolean.

    Raises:
        InvalidRequestError: the schema is too large, or has something that an answer could violate.
    """
    return _grammar("json_schema", {**enforceable(schema), "x-guidance": _JSON_OPTIONS})


def regex(pattern: str) -> Grammar:
    """Return the grammar of texts that match a regular expression, in the syntax of Rust's `regex`, as a whole.

    Raises:
        InvalidRequestError: it is empty, too long, or not clean text.
    """
    _check_text("regular expression", pattern, MAX_REGEX_BYTES)
    # Lark writes it between slashes on one line.
    body = re.sub(
        r"\\.|/|\n", lambda match: {"/": r"\/", "\n": r"\n"}.get(match[0], match[0]), pattern, flags=re.DOTALL
    )
    return _grammar("lark_grammar", f"start: /{body}/")


def lark(source: str) -> Grammar:
    """Return a grammar written in llguidance's variant of Lark.

    Raises:
        InvalidRequestError: it is empty, too long, nested too deeply, not clean text, or has %json: only `json_schema`
            checks that a schema can be kept.
    """
    _check_text("Lark grammar", source, MAX_SOURCE_BYTES)
    tokens = _LARK_TOKEN.findall(source)
    if "%json" in tokens:
        raise InvalidRequestError("the Lark grammar has %json, which is not supported: give the JSON schema by itself")
    _check_nesting("Lark grammar", tokens)
    return _grammar("lark_grammar", source)


def gbnf(source: str) -> Grammar:
    """Return a grammar written in llama.cpp's GBNF.

    Raises:
        InvalidRequestError: it is empty, too long, nested too deeply, or not clean text.
    """
    _check_text("GBNF grammar", source, MAX_SOURCE_BYTES)
    _check_nesting("GBNF grammar", _GBNF_TOKEN.findall(source))
    return Grammar(source, is_gbnf=True)


def translated_gbnf(lark_source: str) -> Grammar:
    """Return the grammar that a GBNF grammar has become."""
    return _grammar("lark_grammar", lark_source)


def _grammar(kind: str, value: object) -> Grammar:
    return Grammar(json.dumps({"grammars": [{kind: value}]}, ensure_ascii=False))


def _check_text(name: str, text: str, max_bytes: int) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"the {name} is not valid Unicode: it has half of a surrogate pair") from None
    if size_bytes > max_bytes:
        raise InvalidRequestError(f"the {name} has {size_bytes:,} bytes, the limit is {max_bytes:,}: shorten it")
    if not text.strip():
        raise InvalidRequestError(f"the {name} is empty: write one, or leave it out")
    if "\0" in text:
        raise InvalidRequestError(f"the {name} contains NUL: remove it")


def _check_nesting(name: str, tokens: list[str]) -> None:
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token, 0)
        if depth > MAX_NESTING:
            raise InvalidRequestError(
                f"the {name} is nested more than {MAX_NESTING} levels deep: name the inner parts as rules of their own"
            )
