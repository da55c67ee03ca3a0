"""One request on its way: its tokens, how many of them are computed, and the text that comes of them."""

import time
from enum import StrEnum

from pinyon.engine.errors import EngineError
from pinyon.engine.events import (
    Chunk,
    Event,
    Finished,
    FinishReason,
    PositionLogprobs,
    Progress,
    Timings,
    Usage,
)
from pinyon.engine.logprobs import position_logprobs
from pinyon.engine.native import Logits
from pinyon.engine.request import GenerateRequest
from pinyon.engine.sampler import Sampler
from pinyon.engine.text_stream import TextStream
from pinyon.engine.vocab import Vocab


class State(StrEnum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Sequence:
    """A request and everything that belongs to it alone.

    `tokens` is the prompt and what was generated; the first `computed` of them have their KV in the context, under
    `sequence_id`. The last generated token is never computed before the next one is wanted, so a decoding sequence has
    exactly one token to compute, and one that lost its cells simply has all of them to compute again.
    """

    def __init__(
        self, request: GenerateRequest, prompt: list[int], vocab: Vocab, sampler: Sampler, context_tokens: int
    ) -> None:
        self.request = request
        self.tokens = prompt
        self.prompt_tokens = len(prompt)
        self.computed = 0
        self.sequence_id: int | None = None
        room = context_tokens - self.prompt_tokens
        self._answer_limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self._vocab = vocab
        self._sampler = sampler
        self._text = TextStream(request.stop)
        self._reported = 0
        self._unsent_from = self.prompt_tokens
        self._unsent_logprobs: list[PositionLogprobs] = []
        self._created = time.monotonic()
        self._admitted: float | None = None
        self._first_token: float | None = None
        self.done = False

    @property
    def state(self) -> State:
        if self.done:
            return State.DONE
        if self.sequence_id is None:
            return State.WAITING
        return State.DECODE if self.uncomputed == 1 and self.computed >= self.prompt_tokens else State.PREFILL

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.computed

    def admit(self, sequence_id: int) -> None:
        self.sequence_id = sequence_id
        self._admitted = self._admitted or time.monotonic()

    def lose_cells(self) -> None:
        """Go back to waiting: the KV is gone, the text, the seed and the penalties stay."""
        self.sequence_id = None
        self.computed = 0

    def advance(self, rows: int) -> list[Event]:
        """Count rows as computed; tell how far the prompt is."""
        self.computed += rows
        done = min(self.computed, self.prompt_tokens)
        if done <= self._reported:  # decoding, or computing again what was computed before
            return []
        self._reported = done
        return [Progress(done, self.prompt_tokens)]

    def take(self, logits: Logits) -> list[Event]:
        """Choose the next token from the last row's logits; return what became visible, and the end if it is one."""
        token = self._sampler.choose(logits)
        self._first_token = self._first_token or time.monotonic()
        if self._vocab.is_eog(token) and not self.request.ignore_eos:
            return self.finish(FinishReason.STOP)
        self.tokens.append(token)
        if self.request.logprobs is not None:
            self._unsent_logprobs.append(
                position_logprobs(logits, token, self.request.logprobs, self._vocab.token_bytes)
            )
        text = self._text.push(self._vocab.token_bytes(token))
        if self._text.stopped:
            return self.finish(FinishReason.STOP, text)
        if len(self.tokens) - self.prompt_tokens >= self._answer_limit:
            return self.finish(FinishReason.LENGTH, text)
        return self._chunk(text) if text else []

    def finish(self, reason: FinishReason, text: str = "") -> list[Event]:
        """End the answer: flush every buffer, release the sampler, report."""
        last = self._end(text)
        usage = Usage(self.prompt_tokens, len(self.tokens) - self.prompt_tokens)
        return [*last, Finished((reason,), usage, self._timings(), self._sampler.seed)]

    def fail(self, error: EngineError) -> list[Event]:
        """End the request without an answer; text held back is shown first, as on every other way out."""
        return [*self._end(), error.as_event()]

    def _end(self, text: str = "") -> list[Event]:
        """Release what the sequence holds; return the last chunk, if there is anything in it."""
        self.done = True
        self._sampler.close()
        text += self._text.flush()
        return self._chunk(text) if text or self._unsent_from < len(self.tokens) else []

    def _chunk(self, text: str) -> list[Event]:
        chunk = Chunk(0, text, tuple(self.tokens[self._unsent_from :]), tuple(self._unsent_logprobs))
        self._unsent_from = len(self.tokens)
        self._unsent_logprobs = []
        return [chunk]

    def _timings(self) -> Timings:
        now = time.monotonic()
        admitted = self._admitted or now
        first = self._first_token or now
        return Timings(admitted - self._created, first - admitted, now - first)
