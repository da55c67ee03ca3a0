"""One request on its way: its tokens, how many of them are computed, and the text that comes of them."""

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from pinyon.engine.cache_report import SHOWN_TOKENS, CacheReport, Gap, Miss
from pinyon.engine.divergence import explained
from pinyon.engine.draft_report import DraftTally
from pinyon.engine.events import Chunk, Event, FinishReason, PositionLogprobs, Progress
from pinyon.engine.gate import Constraint, Gate
from pinyon.engine.kv_blocks import Restore
from pinyon.engine.logprobs import position_logprobs
from pinyon.engine.native import Logits
from pinyon.engine.prefix_tree import Leaf
from pinyon.engine.request import GenerateRequest, Speculate
from pinyon.engine.sampler import Sampler
from pinyon.engine.text_stream import NOTHING, TextStream, Visible
from pinyon.engine.vocab import Vocab


class State(StrEnum):
    WAITING = "waiting"
    RESTORE = "restore"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


_READING = frozenset({State.RESTORE, State.PREFILL})
_VAGUE = (Miss.NEW, Miss.DIVERGED, Miss.UNAVAILABLE)
"""What is told only where nothing better is known, the vaguest first."""


class ComingPrefix(NamedTuple):
    """The first `tokens` tokens of a waiting sequence, which another one is about to have."""

    other: "Sequence"
    tokens: int

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: the other has them, is not reading its prompt any more, or leaves nothing."""
        return self.other.computed >= self.tokens or not (self.other.is_reading and self.other.request.use_cache)


class Foretold(NamedTuple):
    """What was foretold of a sequence when it came: how much of its prompt others do not have, and how long that takes alone."""

    prompt_tokens: int
    prompt_s: float


class Sequence:
    """One choice of a request, and everything that belongs to it alone.

    `tokens` is the prompt and what was generated; the first `computed` of them have their KV in the context, in `leaf`. The
    last generated token is never computed before the next one is wanted, so a decoding sequence has exactly one token to
    compute, and one that lost its cells simply has all of them to compute again. `restore` is what still comes back from
    the block store.
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request = request
        self.tokens = prompt
        self.prompt_tokens = len(prompt)
        self.reasoning_tokens = 0
        self.leaf: Leaf | None = None
        self.restore: Restore | None = None
        self.coming: ComingPrefix | None = None
        """What a waiting sequence waits for."""
        self.stops: set[int] = set()
        """Positions where a slice has to end."""
        self._reused: Restore | None = None
        self._found_tokens = 0
        self._has_computed = False
        """Before it lost its cells: what was found before that is what was reused."""
        self._gap: Gap | None = None
        self.reason: FinishReason | None = None
        """Why the answer ended; None while it goes on, and after a failure."""
        self.done = False
        room = context_tokens - self.prompt_tokens
        self._answer_limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self.index = index
        self.number = 0
        """In the order of arrival."""
        self.foretold = Foretold(prompt_tokens=len(prompt), prompt_s=0.0)
        self._clock = clock
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
        self.drafting = DraftTally()
        self.created = self._clock()
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.ended: float | None = None

    @property
    def state(self) -> State:
        if self.done:
            return State.DONE
        if self.leaf is None:
            return State.WAITING
        if self.is_restoring:
            return State.RESTORE
        return State.DECODE if self.prompt_tokens <= self.leaf.length == len(self.tokens) - 1 else State.PREFILL

    @property
    def is_restoring(self) -> bool:
        return self.restore is not None and not self.restore.is_over

    @property
    def is_reading(self) -> bool:
        """Whether it is getting its prompt's KV, computed or brought back."""
        return self.state in _READING

    @property
    def computed(self) -> int:
        return 0 if self.leaf is None else self.leaf.length

    @property
    def own_cells(self) -> int:
        """How many cells it alone holds."""
        return 0 if self.leaf is None else self.leaf.own_cells

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def until_stop(self) -> int:
        """How many tokens there are to the next stop, or to the end."""
        return min((stop - self.computed for stop in self.stops if stop > self.computed), default=self.uncomputed)

    @property
    def cached_tokens(self) -> int:
        """How much of the prompt did not have to be computed. What is computed again after a preemption does not count."""
        return self._found_tokens + (0 if self._reused is None else sum(self._reused.by_tier))

    def cache_report(self) -> CacheReport:
        """Tell what was there of the prompt, where, and why not more."""
        reused = self._reused
        ram, disk = (0, 0) if reused is None else reused.by_tier
        gaps = [gap for gap in (self._gap, None if reused is None else reused.gap) if gap is not None]
        if not gaps or self.cached_tokens >= self.prompt_tokens - 1:
            return CacheReport(self._found_tokens, ram, disk)
        gap = max(gaps, key=lambda each: (each.position, *(each.miss is not vague for vague in _VAGUE)))
        if gap.position >= self.prompt_tokens - 1:  # the text is known, but not its state
            gap = Gap(Miss.UNAVAILABLE, self.cached_tokens)
        miss, advice = gap.miss, ""
        if miss is Miss.DIVERGED:
            prompt = self.tokens[: self.prompt_tokens]
            miss, advice = explained(prompt, gap, self._vocab, self.request.reasoning)
        expected, got = (self._vocab.shown(tokens[:SHOWN_TOKENS]) for tokens in (gap.expected, gap.got))
        return CacheReport(self._found_tokens, ram, disk, miss, gap.position, expected, got, advice)

    @property
    def seed(self) -> int:
        return self._sampler.seed

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def answer_room(self) -> int:
        """How many tokens the answer may still get."""
        return self._answer_limit - self.completion_tokens

    @property
    def may_draft(self) -> bool:
        """Whether tokens may be drafted for it. A deterministic one has its rows one by one, always."""
        return self.request.speculate is not Speculate.OFF and not self.request.deterministic and self.answer_room > 1

    def admit(self, leaf: Leaf, restore: Restore | None = None, gap: Gap | None = None) -> None:
        """Start with what the leaf holds, and with what comes back; `gap` is where that ends."""
        self.leaf, self.restore = leaf, restore
        self.admitted = self._clock() if self.admitted is None else self.admitted
        if not self._has_computed:
            self._found_tokens, self._reused, self._gap = leaf.usable_length, restore, gap

    @property
    def unknown_tokens(self) -> int:
        """How many tokens are neither computed nor about to come back."""
        coming = self.restore.hits[-1].end if self.restore is not None and self.restore.hits else 0
        return len(self.tokens) - max(self.computed, coming)

    def lose_cells(self) -> None:
        """Go back to waiting: the KV is gone, the text, the seed and the penalties stay."""
        self._has_computed = self._has_computed or self.computed > self.cached_tokens
        self.leaf = self.restore = None

    def progress(self) -> list[Event]:
        """Tell how far the prompt is, where that is news; the first choice does it for all."""
        done = min(self.computed, self.prompt_tokens)
        if self.index or done <= self._reported:  # decoding, or computing again what was computed before
            return []
        self._reported = done
        return [Progress(done, self.prompt_tokens, self.cached_tokens)]

    def take(self, logits: Logits, draft: Iterable[int] = ()) -> list[Event]:
        """Choose the tokens that follow, one from each row of logits (of shape (rows, vocabulary)) as long as the draft foresaw them, and
        one more; return what became visible. At the end of the answer, set `reason`.
        """
        for row, foreseen in zip(logits, (*draft, None), strict=True):
            token = self._sampler.choose(row if self._gate is None else self._gate.allowed(row))
            if (reason := self._took(token, row)) is not None:
                return self.finish(reason)
            if token != foreseen:
                break
        return self._chunk()

    def _took(self, token: int, logits: Logits) -> FinishReason | None:
        """Add a chosen token; return why the answer ends with it, if it does."""
        self.last_token = self._clock()
        self.first_token = self.first_token or self.last_token
        if self._vocab.is_eog(token) and not self.request.ignore_eos:
            return FinishReason.STOP
        self._push(token, logits)
        if self._text.stopped:
            return FinishReason.STOP
        if self._gate is not None:
            self._gate.take(token)
            if self._gate.is_complete:
                return FinishReason.STOP
        return FinishReason.LENGTH if self.completion_tokens >= self._answer_limit else None

    def _push(self, token: int, logits: Logits) -> None:
        """Add a token; count it to the thoughts or to the answer."""
        was_thinking = self._text.in_reasoning
        self.tokens.append(token)
        shown = self._text.push(self._tag_bytes.get(token) or self._vocab.token_bytes(token))
        self._unsent = Visible(self._unsent.text + shown.text, self._unsent.reasoning + shown.reasoning)
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
        self.ended = self._clock()
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
        return [Chunk(self.index, text, tokens, logprobs, reasoning)]
