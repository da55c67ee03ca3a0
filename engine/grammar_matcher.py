"""Makes llguidance's matchers: with the same limits where a grammar is checked and where it is used.

Importing this imports llguidance.
"""

from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pinyon.engine.errors import InvalidRequestError

# llguidance's own limits do: a mask takes at most about 30 ms and a grammar 100 MiB. Its verbose errors would show schemas.
LIMITS: Final = LLParserLimits(verbose_errors=False)
_REASON_CAP_CHARS = 300
# What llguidance says of a schema without naming the keyword, or with advice for programmers.
_PLAINER = {
    "oneOf constraints are not supported": "'oneOf' needs alternatives that exclude each other by their type, or by a "
    "required property with a string constant: use anyOf, or add such a property",
    "min/maxProperties only supported": "'minProperties' and 'maxProperties' work only where all of 'properties' are "
    "'required'",
    "Current row has": "too much can follow at one place: an object may have about 500 optional properties",
    "schema too large": "the schemas under 'allOf', 'anyOf', 'oneOf' and '$ref' have too many combinations",
    "Unsatisfiable schema": "no JSON satisfies the schema",
    "NoExtension": "no text matches the grammar",
    "regex": "the regular expression or 'pattern' cannot be used",
}


def start_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Return a matcher at the beginning of an answer, its first mask computed: that is the dearest one.

    Raises:
        InvalidRequestError: llguidance refuses the grammar, or no text matches it.
    """
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return matcher


def refusal(reason: str) -> InvalidRequestError:
    """Return the error for a grammar that llguidance refuses, in one line."""
    line = " ".join(reason.removesuffix("<non-verbose/>").split())
    if len(line) > _REASON_CAP_CHARS:
        line = f"{line[:_REASON_CAP_CHARS]}..."
    for words, plainer in _PLAINER.items():
        if words in line:
            return InvalidRequestError(f"{plainer} ({line})")
    return InvalidRequestError(f"the grammar cannot be used: {line}")
