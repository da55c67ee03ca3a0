"""The step loop's body: schedule, run, apply. One thread; requests come and go between steps."""

from typing import Protocol, TypeAlias

from pinyon.engine.batch import Batch
from pinyon.engine.errors import ContextOverflowError, EngineError, InvalidRequestError
from pinyon.engine.events import Event, FinishReason
from pinyon.engine.native import Candidates, Logits
from pinyon.engine.request import GenerateRequest
from pinyon.engine.sampler import Sampler
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence
from pinyon.engine.vocab import Vocab

Emitted: TypeAlias = tuple[str, Event]
"""A request's id and one of its events."""


class BatchRunner(Protocol):
    """Computes a batch; runner.Runner does, and fakes with fixed logits in tests."""

    def run(self, batch: Batch) -> Logits: ...


class Engine:
    """Requests in, events out. Every submitted request ends in exactly one Finished or Failed."""

    def __init__(self, vocab: Vocab, runner: BatchRunner, scheduler: Scheduler, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self._vocab = vocab
        self._runner = runner
        self._scheduler = scheduler
        self._candidates = Candidates(vocab.size)
        self._sequences: dict[str, Sequence] = {}

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    def prepare(self, request: GenerateRequest) -> list[int]:
        """Check a request and return its prompt's tokens. Safe in any thread; raises EngineError."""
        request.checked(self._vocab.size)
        prompt = self._vocab.encode(request.prompt)
        if not prompt:
            raise InvalidRequestError("the prompt is empty: there is nothing to continue")
        if len(prompt) >= self.context_tokens:
            raise ContextOverflowError(len(prompt), self.context_tokens)
        return prompt

    def submit(self, request: GenerateRequest, prompt: list[int]) -> None:
        """Queue a prepared request."""
        assert request.id not in self._sequences, "the client gives every open request an id of its own"
        sampler = Sampler(request.sampling, self._candidates, self._vocab.size, self.context_tokens, prompt)
        sequence = Sequence(request, prompt, self._vocab, sampler, self.context_tokens)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> list[Emitted]:
        """End a request in whatever state it is; one that has ended already is left alone."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        return self._leave(sequence, sequence.finish(FinishReason.CANCELLED))

    def step(self) -> list[Emitted]:
        """Compute one batch and return what came of it."""
        batch = self._scheduler.schedule()
        try:
            logits = self._runner.run(batch)
        except EngineError as error:
            return self._fail(batch, error)
        return self._apply(batch, logits)

    def _apply(self, batch: Batch, logits: Logits) -> list[Emitted]:
        emitted: list[Emitted] = []
        row = 0
        for piece in batch.slices:
            sequence, wants_logits = piece.sequence, piece.wants_logits
            events = sequence.advance(piece.rows)
            if wants_logits:
                events += self._take(sequence, logits[row])
                row += 1
            emitted += self._leave(sequence, events) if sequence.done else self._tag(sequence, events)
        return emitted

    def _take(self, sequence: Sequence, logits: Logits) -> list[Event]:
        try:
            return sequence.take(logits)
        except EngineError as error:
            return sequence.fail(error)

    def _fail(self, batch: Batch, error: EngineError) -> list[Emitted]:
        """A decode that failed says nothing about which sequence is to blame: all of its sequences end here."""
        return [
            emitted for piece in batch.slices for emitted in self._leave(piece.sequence, piece.sequence.fail(error))
        ]

    def _leave(self, sequence: Sequence, events: list[Event]) -> list[Emitted]:
        del self._sequences[sequence.request.id]
        self._scheduler.release(sequence)
        return self._tag(sequence, events)

    @staticmethod
    def _tag(sequence: Sequence, events: list[Event]) -> list[Emitted]:
        return [(sequence.request.id, event) for event in events]
