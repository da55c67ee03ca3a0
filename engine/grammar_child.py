"""The process that checks one grammar: `python -m pinyon.engine.grammar_child MEMORY_LIMIT_BYTES`.

It says READY, reads a grammar as JSON until standard input ends, answers on standard output and exits: ACCEPTED with the source
that a worker compiles, REFUSED with the reason. Every other exit is a crash, which a hostile grammar can cause.
"""

import random
import re
import sys
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.grammar import translated_gbnf
from pinyon.engine.grammar_matcher import LIMITS, refusal, start_matcher
from pinyon.engine.grammar_messages import ACCEPTED, READY, REFUSED
from pinyon.engine.request import Grammar

if sys.platform != "win32":
    import resource

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_TRIAL_TOKENS = 32
_CPU_LIMIT_S = 60
"""The parent keeps the time; this ends the process should the parent die first."""


def checked(grammar: Grammar) -> Grammar:
    """Return the grammar in llguidance's own syntax. Raises InvalidRequestError."""
    if grammar.is_gbnf:
        grammar = _from_gbnf(grammar.source)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar.source, limits=LIMITS)
    if is_error:
        raise refusal(messages[0])
    if any(message.startswith("no tokenizer") for message in messages):
        raise refusal("it names tokens (<...>), and an answer is text: write the text in quotes")
    tokenizer = LLTokenizer("byte")
    _try_out(start_matcher(tokenizer, grammar.source), tokenizer.vocab_size)
    return grammar


def _from_gbnf(source: str) -> Grammar:
    try:
        return translated_gbnf(gbnf_to_lark(_ESCAPE.sub(_unescaped, source)))
    except RecursionError:
        raise refusal("it is nested too deeply: name the inner parts as rules of their own") from None
    except Exception as error:  # noqa: BLE001  the converter raises plain exceptions
        raise refusal(str(error)) from None


def _unescaped(escape: re.Match[str]) -> str:
    """Spell an escaped character in the way that survives the converter."""
    code = int(escape[1] or escape[2] or "0", 16)
    if not code or code > sys.maxunicode or 0xD800 <= code < 0xE000:
        return escape[0]
    return chr(code) if code >= 0x80 else f"\\x{code:02x}"


def _try_out(matcher: LLMatcher, vocabulary_size: int) -> None:
    """Walk a little way at random: most grammars that run into a limit do so at once."""
    rng = random.Random(0)  # noqa: S311  the same walk each time
    for _ in range(_TRIAL_TOKENS):
        mask = matcher.compute_bitmask()
        if matcher.is_stopped():
            break
        allowed = [token for token in range(vocabulary_size) if mask[token >> 3] >> (token & 7) & 1]
        matcher.consume_token(rng.choice(allowed))
    if matcher.is_error():
        raise refusal(matcher.get_error())


def confine(memory_limit_bytes: int) -> None:
    """Give up, for good, what checking does not need: more memory, endless time, core dumps."""
    if sys.platform == "win32":
        return
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_limit_bytes)
    _lower(resource.RLIMIT_CPU, _CPU_LIMIT_S)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(limit, (value, value))


def serve() -> int:
    """Answer the grammar on standard input; return the exit status."""
    confine(int(sys.argv[1]))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    grammar = msgspec.json.decode(sys.stdin.buffer.read(), type=Grammar)
    try:
        answer, status = checked(grammar).source, ACCEPTED
    except InvalidRequestError as error:
        answer, status = str(error), REFUSED
    sys.stdout.buffer.write(answer.encode())
    sys.stdout.buffer.flush()
    return status


if __name__ == "__main__":
    sys.exit(serve())
