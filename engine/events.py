"""What comes out of the engine: for a request any number of Progress and Chunk events, then exactly one Finished or Failed."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport


class FinishReason(StrEnum):
    """Why an answer ended. STOP covers end-of-generation tokens and stop strings."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class FailureKind(StrEnum):
    INVALID_REQUEST = "invalid_request"
    CONTEXT_OVERFLOW = "context_length_exceeded"
    LOAD_FAILED = "load_failed"
    DOES_NOT_FIT = "does_not_fit"
    OVERLOADED = "overloaded"
    CLIENT_LIMIT = "client_limit"
    ENGINE_CRASH = "engine_crash"
    ENGINE_STUCK = "engine_stuck"
    ENGINE_ERROR = "engine_error"


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural log of a token's probability; `raw` is the token's bytes, which may be part of a character."""

    token: int
    logprob: float
    raw: bytes


class PositionLogprobs(msgspec.Struct, frozen=True):
    """One output position: the chosen token, and the likeliest ones in falling order."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens, of all choices together. The end-of-generation token, never shown, is not counted.

    `reasoning_tokens` are those of `completion_tokens` that were spent inside the model's thinking tags, tags included.
    `cached_tokens` are those of `prompt_tokens` that the first choice did not have to compute.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds: waiting for admission, from admission to the first token, from the first token to the last."""

    queue_s: float
    prefill_s: float
    decode_s: float


def prompt_tokens_per_s(usage: Usage, timings: Timings) -> float | None:
    """Return how fast the part of the prompt that was not cached was computed; None where there was none."""
    return rate(usage.prompt_tokens - usage.cached_tokens, timings.prefill_s)


def tokens_per_s(usage: Usage, timings: Timings) -> float | None:
    """Return how fast tokens followed the first one, which belongs to the prefill; None where none did."""
    return rate(usage.completion_tokens - 1, timings.decode_s)


def rate(number: int, duration_s: float) -> float | None:
    """Return a number per second; None where nothing was counted or no time went by."""
    return number / duration_s if number > 0 and duration_s > 0 else None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How much of the prompt is there, in tokens, and how much of that was cached. The first one says 0: the request was accepted."""

    done: int
    total: int
    cached: int = 0


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """New visible text of one choice, and its tokens since the last chunk.

    Text lags behind tokens while a character is incomplete or a stop string or a tag may be forming. `logprobs` has the
    positions of the answer, not those of the reasoning.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    reasoning: str = ""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The answer is complete. `reasons` has one entry a choice; `seed` is the first choice's, given or drawn, None if nothing was.

    `cache` is about the first choice's prompt, `speculation` about all choices.
    """

    reasons: tuple[FinishReason, ...]
    usage: Usage
    timings: Timings
    seed: int | None
    cache: CacheReport = CacheReport()
    speculation: DraftReport = DraftReport()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ends here; `message` is for the user, `data` holds its figures by name, `param` is the field to blame."""

    kind: FailureKind
    message: str
    data: dict[str, int] = {}
    param: str | None = None


Event: TypeAlias = Progress | Chunk | Finished | Failed


class Removed(msgspec.Struct, frozen=True):
    """How many blocks were forgotten, and how many bytes of KV they held together."""

    blocks: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(self.blocks + other.blocks, self.size_bytes + other.size_bytes)
