"""One request on its way: its tokens, how many of them are computed, and the text that comes of them."""

import time
from enum import StrEnum

from pinyon.engine.events import Chunk, Event, FinishReason, PositionLogprobs, Progress
from pinyon.engine.gate import Constraint, Gate
from pinyon.engine.logprobs import position_logprobs
from pinyon.engine.native import Logits
from pinyon.engine.request import GenerateRequest
from pinyon.engine.sampler import Sampler
from pinyon.engine.text_stream import NOTHING, TextStream, Visible
from pinyon.engine.vocab import Vocab


class State(StrEnum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Sequence:
    """One choice of a request, and everything that belongs to it alone.

    `tokens` is the prompt and what was generated; the first `computed` of them have their KV in the context, under
    `sequence_id`. The last generated token is never computed before the next one is wanted, so a decoding sequence has
    exactly one token to compute, and one that lost its cells simply has all of them to compute again.
    """

    def __init__(
        self,
        request: GenerateRequest,
        prompt: list[int],
        vocab: Vocab,
        sampler: Sampler,
        context_tokens: int,
        *,
        index: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.tokens = prompt
        self.prompt_tokens = len(prompt)
        self.reasoning_tokens = 0
        self.computed = 0
        self.sequence_id: int | None = None
        self.reason: FinishReason | None = None
        """Why the answer ended; None while it goes on, and after a failure."""
        self.done = False
        room = context_tokens - self.prompt_tokens
        self._answer_limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self._index = index
        self._vocab = vocab
        self._sampler = sampler
        self._text = TextStream(request.stop, request.reasoning)
        self._tag_bytes = vocab.tag_bytes(request.reasoning)
        self._gate = None
        if constraint is not None:
            self._gate = Gate(constraint, self._text, vocab.opening(request.reasoning), vocab.eog_tokens)
        self._reported = 0
        self._unsent_from = self.prompt_tokens
        self._unsent_logprobs: list[PositionLogprobs] = []
        self._unsent = NOTHING
        self.created = time.monotonic()
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None

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

    @property
    def seed(self) -> int:
        return self._sampler.seed

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def admit(self, sequence_id: int) -> None:
        self.sequence_id = sequence_id
        self.admitted = self.admitted or time.monotonic()

    def lose_cells(self) -> None:
        """Go back to waiting: the KV is gone, the text, the seed and the penalties stay."""
        self.sequence_id = None
        self.computed = 0

    def advance(self, rows: int) -> list[Event]:
        """Count rows as computed; the first choice tells how far the prompt is."""
        self.computed += rows
        done = min(self.computed, self.prompt_tokens)
        if self._index or done <= self._reported:  # decoding, or computing again what was computed before
            return []
        self._reported = done
        return [Progress(done, self.prompt_tokens)]

    def take(self, logits: Logits) -> list[Event]:
        """Choose the next token from the last row's logits; return what became visible. At the end of the answer, set `reason`."""
        token = self._sampler.choose(logits if self._gate is None else self._gate.allowed(logits))
        self.first_token = self.first_token or time.monotonic()
        if self._vocab.is_eog(token) and not self.request.ignore_eos:
            return self.finish(FinishReason.STOP)
        self._push(token, logits)
        if self._text.stopped:
            return self.finish(FinishReason.STOP)
        if self._gate is not None:
            self._gate.take(token)
            if self._gate.is_complete:
                return self.finish(FinishReason.STOP)
        if self.completion_tokens >= self._answer_limit:
            return self.finish(FinishReason.LENGTH)
        return self._chunk()

    def _push(self, token: int, logits: Logits) -> None:
        """Add a token; count it to the thoughts or to the answer."""
        was_thinking = self._text.in_reasoning
        self.tokens.append(token)
        self._unsent = self._text.push(self._tag_bytes.get(token) or self._vocab.token_bytes(token))
        if was_thinking:
            self.reasoning_tokens += 1
        elif self._text.in_reasoning:  # the tokens that nothing was shown for were those of the tag
            self.reasoning_tokens += len(self.tokens) - self._unsent_from
            self._unsent_logprobs = []
        elif self.request.logprobs is not None:
            self._unsent_logprobs.append(
                position_logprobs(logits, token, self.request.logprobs, self._vocab.token_bytes)
            )

    def finish(self, reason: FinishReason) -> list[Event]:
        """End the answer: flush every buffer, release the sampler and the grammar."""
        self.reason = reason
        return self._end()

    def fail(self) -> list[Event]:
        """End without an answer; text held back is shown first, as on every other way out."""
        return self._end()

    def _end(self) -> list[Event]:
        """Release what the sequence holds; return the last chunk, if there is anything in it."""
        self.done = True
        self.ended = time.monotonic()
        self._sampler.close()
        if self._gate is not None:
            self._gate.close()
        rest = self._text.flush()
        self._unsent = Visible(self._unsent.text + rest.text, self._unsent.reasoning + rest.reasoning)
        return self._chunk(even_without_text=self._unsent_from < len(self.tokens))

    def _chunk(self, *, even_without_text: bool = False) -> list[Event]:
        text, reasoning = self._unsent
        if not (text or reasoning or even_without_text):
            return []
        tokens, logprobs = tuple(self.tokens[self._unsent_from :]), tuple(self._unsent_logprobs)
        self._unsent_from = len(self.tokens)
        self._unsent_logprobs = []
        self._unsent = NOTHING
        return [Chunk(self._index, text, tokens, logprobs, reasoning)]
