"""Every limit of the HTTP door, and the table of them that the documents print.

What the engine enforces is imported from there: a number stands in one file.
"""

from dataclasses import dataclass
from typing import Final

from pinyon.app import residents
from pinyon.engine import config, grammar, grammar_check, json_schema, request
from pinyon.models import template_sandbox

BODY_BYTES: Final = 8 << 20
HEADER_BYTES: Final = 32 << 10
"""Request line and headers together."""
MAX_HEADERS: Final = 200

MAX_CLIENT_TOKENS: Final = 256
MAX_CONNECTIONS: Final = 512
RECEIVE_S: Final = 15.0
KEEP_ALIVE_S: Final = 5
BLOCKED_WRITE_S: Final = 30.0
LINGER_S: Final = 2.0
"""How long what still arrives after a refusal is thrown away: closing over unread bytes resets the connection, and a reset can
take the answer away from the peer."""
SSE_COMMENT_S: Final = 10.0
SHUTDOWN_GRACE_S: Final = 10.0
RETRY_AFTER_S: Final = 5

MAX_CHOICES: Final = request.MAX_CHOICES
MAX_USER_STOPS: Final = request.MAX_STOPS - 1  # the engine's last place is for the end-of-turn tag of a chat template
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 4096
"""Of all messages together."""
MAX_TOOL_CALLS: Final = 128
MAX_PROMPTS: Final = 16
MAX_PROMPT_TOKENS: Final = 1 << 20
MAX_MODEL_NAME_CHARS: Final = 512


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the table: a limit, its value as shown, and what happens past it."""

    name: str
    value: str
    past: str


def _size(size_bytes: int) -> str:
    """In the largest unit that divides it: every digit shown is exact."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift:,} {unit}"
    return f"{size_bytes:,} bytes"


_CLOSED = "the connection is closed"

TABLE: Final = (
    Limit("body of a request", _size(BODY_BYTES), f"413, and {_CLOSED}"),
    Limit("request line and headers", f"{_size(HEADER_BYTES)}, {MAX_HEADERS:,} headers", f"431, and {_CLOSED}"),
    Limit("tokens in --token-file", f"{MAX_CLIENT_TOKENS:,}", "the server does not start"),
    Limit("open connections", f"{MAX_CONNECTIONS:,}", f"503 with Retry-After: {RETRY_AFTER_S}, and {_CLOSED}"),
    Limit(
        "answers that wait for their turn, each choice of n counted (the setting max_queued)",
        f"{config.Limits().queue:,}",
        "503 with Retry-After as predicted",
    ),
    Limit(
        "those of one client: token, user or connection (the setting max_queued_per_client)",
        f"{config.Limits().client_queue:,}",
        "429 with Retry-After as predicted",
    ),
    Limit(
        "time to the first token, where a request has ttft_deadline_s",
        "as predicted",
        "503 with Retry-After as predicted",
    ),
    Limit(
        "wait of a model for others to leave memory",
        f"{residents.SWAP_WAIT_S:g} s",
        f"503 with Retry-After: {RETRY_AFTER_S}",
    ),
    Limit("time to receive a request", f"{RECEIVE_S:g} s", f"408 where one had begun, and {_CLOSED}"),
    Limit("time without a next request on a connection", f"{KEEP_ALIVE_S:g} s", _CLOSED),
    Limit("time in which a client reads nothing", f"{BLOCKED_WRITE_S:g} s", f"{_CLOSED}, its request cancelled"),
    Limit("silence in a stream", f"{SSE_COMMENT_S:g} s", "a comment line is sent"),
    Limit("time to finish answers at shutdown", f"{SHUTDOWN_GRACE_S:g} s", "open answers end with an error"),
    Limit("model, a name", f"{MAX_MODEL_NAME_CHARS:,} characters", "400"),
    Limit("n", f"{MAX_CHOICES:,}", "400"),
    Limit("stop", f"{MAX_USER_STOPS:,} strings of {_size(request.MAX_STOP_BYTES)}", "400"),
    Limit("logit_bias", f"{request.MAX_LOGIT_BIAS:,} tokens", "400"),
    Limit("top_logprobs", f"{request.MAX_TOP_LOGPROBS:,}", "400"),
    Limit("prompts of one completion request", f"{MAX_PROMPTS:,}", "400"),
    Limit("token ids of a prompt, or to detokenize", f"{MAX_PROMPT_TOKENS:,}", "400"),
    Limit("messages", f"{MAX_MESSAGES:,}", "400"),
    Limit("content parts of all messages", f"{MAX_PARTS:,}", "400"),
    Limit("tool_calls of a message", f"{MAX_TOOL_CALLS:,}", "400"),
    Limit(
        "JSON schema",
        f"{_size(json_schema.MAX_BYTES)}, {json_schema.MAX_DEPTH:,} levels, {json_schema.MAX_NODES:,} nodes",
        "400",
    ),
    Limit("GBNF or Lark grammar", f"{_size(grammar.MAX_SOURCE_BYTES)}, {grammar.MAX_NESTING:,} levels", "400"),
    Limit("regular expression", _size(grammar.MAX_REGEX_BYTES), "400"),
    Limit(
        "check of a grammar, regular expression or schema",
        f"{grammar_check.TIME_LIMIT_S:g} s, {_size(grammar_check.MEMORY_LIMIT_BYTES)} of memory",
        "400; its process is ended",
    ),
    Limit("such checks at once", f"{grammar_check.CHILDREN_AT_ONCE:,}", "the next ones wait"),
    Limit(
        "chat template",
        f"{_size(template_sandbox.SOURCE_CAP_BYTES)}, {template_sandbox.TIME_LIMIT_S:g} s, {_size(template_sandbox.MEMORY_LIMIT_BYTES)} of memory",
        "422; its process is ended",
    ),
)
