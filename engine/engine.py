"""The step loop's body: schedule, run, apply. One thread; requests come and go between steps."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from pinyon.engine.admission import Admission
from pinyon.engine.answer import Answer, choice_sampling
from pinyon.engine.answer_memory import AnswerMemory
from pinyon.engine.batch import Batch, Slice
from pinyon.engine.cache_notes import CacheNotes, Note
from pinyon.engine.calibration import Calibration
from pinyon.engine.config import LONG_TEXT_CHARS
from pinyon.engine.cost_file import CostFile
from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import ContextOverflowError, EngineError, InvalidRequestError, OverloadedError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Event, Finished, FinishReason, Progress, Removed
from pinyon.engine.gate import Constraint
from pinyon.engine.kv_folder import DiskTier
from pinyon.engine.meters import Meters
from pinyon.engine.native import Candidates, Logits
from pinyon.engine.prefix_tree import common_length
from pinyon.engine.request import GenerateRequest, Grammar, Prompt, Speculate, Tokens, text_chars
from pinyon.engine.sampler import Sampler
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence
from pinyon.engine.service_meters import ServiceMeters
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.vocab import Vocab

NO_DRAFTS: Final = "what this model has computed cannot be taken back token by token"
KEPT_WITHIN_S: Final = 1.0
"""How long after the end of a request all that it leaves has been kept."""

Emitted: TypeAlias = tuple[str, Event]
"""A request's id and one of its events."""


class BatchRunner(Protocol):
    """Computes a batch; runner.Runner does, and fakes with fixed logits in tests."""

    def run(self, batch: Batch) -> Logits: ...


class Prepared(NamedTuple):
    """A checked request, its prompt's tokens, and a grammar's state for each choice where there is a grammar."""

    request: GenerateRequest
    prompt: list[int]
    constraints: list[Constraint]


class Forgetting(NamedTuple):
    """What has gone from memory, and what is done when it has gone from the disk; it raises OSError, sqlite3.Error."""

    removed: Removed
    done: Future[None]


def counter_at(time_s: float, clock: Callable[[], float]) -> float:
    """Return what a clock of this process says of a time in seconds since 1970."""
    return clock() - (time.time() - time_s)


class Engine:
    """Requests in, events out. Every submitted request ends in exactly one Finished or Failed."""

    def __init__(
        self,
        vocab: Vocab,
        runner: BatchRunner,
        scheduler: Scheduler,
        admission: Admission,
        kv: SharedKv,
        costs: CostModel,
        context_tokens: int,
        compile_grammar: Callable[[Grammar], Constraint],
        calibration: Calibration | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context_tokens = context_tokens
        self._vocab = vocab
        self._runner = runner
        self._scheduler = scheduler
        self._admission = admission
        self._kv = kv
        self._costs = costs
        self._clock = clock
        self._calibration = calibration
        self._cost_file: CostFile | None = None
        self._service = ServiceMeters()
        self._compile_grammar = compile_grammar
        self._candidates = Candidates(vocab.size)
        self._answers: dict[str, Answer] = {}
        self._lately: deque[tuple[float, float]] = deque(maxlen=1000)
        """When those that have ended had come, and when they ended, by the clock."""
        self._past_answers = AnswerMemory(vocab.token_bytes, vocab.is_control)
        self._notes: CacheNotes | None = None

    @property
    def busy(self) -> bool:
        return bool(self._answers)

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Check a request, tokenise its prompt, compile its grammar. Safe in any thread; raises EngineError."""
        self._refuse_too_long(request.prompt)
        request.checked(self._vocab.size)
        prompt = self._encode(request)
        if not prompt:
            raise InvalidRequestError("the prompt is empty: there is nothing to continue", "prompt")
        if len(prompt) >= self.context_tokens:
            raise ContextOverflowError(len(prompt), self.context_tokens)
        return Prepared(request, prompt, self._constraints(request))

    def _encode(self, request: GenerateRequest) -> list[int]:
        if request.deterministic or not request.use_cache:  # what was answered before must not count
            return self._vocab.encode(request.prompt)
        return self._vocab.encode(request.prompt, partial(self._past_answers.find, request.namespace))

    def _constraints(self, request: GenerateRequest) -> list[Constraint]:
        if request.grammar is None:
            return []
        first = self._compile_grammar(request.grammar)
        return [first, *(first.copy() for _ in range(request.n - 1))]

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens. Safe in any thread.

        Raises:
            ContextOverflowError: they are certainly more than the context holds; counting them could take minutes.
        """
        self._refuse_too_long(prompt)
        return self._vocab.encode(prompt)

    def _refuse_too_long(self, prompt: Prompt) -> None:
        counted = tuple(piece for piece in prompt if isinstance(piece, Tokens))
        is_long = text_chars(prompt) > LONG_TEXT_CHARS
        least = self._vocab.least_tokens(prompt if is_long else counted)
        if least >= self.context_tokens:
            raise ContextOverflowError(least, self.context_tokens, is_estimate=True)

    def submit(self, prepared: Prepared, came_at: float | None = None) -> list[Emitted]:
        """Queue a prepared request that came at a time by the clock, None for just now; tell whether it is accepted."""
        request, prompt, constraints = prepared
        assert request.id not in self._answers, "the client gives every open request an id of its own"
        choices: list[Sequence] = []
        for index, sampling in enumerate(choice_sampling(request)):
            sampler = Sampler(sampling, self._candidates, self._vocab.size, self.context_tokens, prompt)
            constraint = constraints[index] if constraints else None
            choices.append(
                Sequence(
                    request,
                    [*prompt],
                    self._vocab,
                    sampler,
                    self.context_tokens,
                    index=index,
                    constraint=constraint,
                    clock=self._clock,
                )
            )
        now = self._clock()
        answer = Answer(choices, now if came_at is None else came_at)
        try:
            expected_s = self._admission.require_place(choices, now - answer.came_at)
        except OverloadedError as error:
            self._service.take_refusal()
            for choice in choices:
                choice.fail()
            return [(request.id, error.as_event())]
        answer.expected_at = now + expected_s
        for choice in choices:
            self._scheduler.add(choice)
        self._answers[request.id] = answer
        self._calibration = None  # real work tells more
        return [(request.id, Progress(0, len(prompt)))]

    def estimate(self, prepared: Prepared) -> Estimate:
        """Return what a request would find of its prompt if it was submitted now. Changes nothing."""
        return self._kv.estimate(prepared.request, prepared.prompt)

    def meters(self) -> Meters:
        """Return what the engine holds and does; the process and devices are not known here."""
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        return msgspec.structs.replace(
            self._kv.meters(),
            running=running,
            waiting=waiting,
            curve=self._costs.curve,
            service=self._service.counted(preempted=self._scheduler.preemptions),
            no_drafts=NO_DRAFTS if self._scheduler.speculation is None else "",
        )

    def cancel(self, request_id: str) -> list[Emitted]:
        """End a request in whatever state it is; one that has ended already is left alone."""
        answer = self._answers.get(request_id)
        if answer is None:
            return []
        self._service.take_cancel()
        emitted: list[Emitted] = []
        for sequence in answer.open:
            emitted += self._leave(sequence, sequence.finish(FinishReason.CANCELLED))
        return emitted

    def step(self) -> list[Emitted]:
        """Compute one batch and return what came of it."""
        self._scheduler.admit()
        emitted = self._restore()
        batch = self._scheduler.schedule()
        if batch.slices:
            emitted += self._compute(batch)
        self._kv.save()
        self._note_blocks()
        return emitted

    def tidy(self) -> float | None:
        """Do a little of what waits for idle time; return in how many seconds there is more to do, None for nothing."""
        if self._calibration is not None and not (self._calibration.is_over or self._kv.awaits_disk):
            self._calibration.step()
            return 0.0
        in_s = self._kv.tidy()
        self._note_blocks()
        return in_s

    def use_costs(self, file: CostFile) -> None:
        """Go on with what was learned at an earlier start, and keep there what is learned now."""
        self._cost_file = file
        if file.kept is not None:
            self._costs.go_on_with(file.kept)
            self._calibration = None

    def use_disk(self, tier: DiskTier | None) -> None:
        """Keep KV and what belongs to it on disk from now on; None where it was expected, and there is none."""
        self._kv.use_disk(tier)
        if tier is not None:
            self._notes = tier.notes
            known = (each for each in tier.answers if self._vocab.has(each.tokens))
            self._past_answers.restore(known, tier.noted)

    def forget(self, conversation: str) -> Forgetting:
        """Forget what only this conversation left. Its requests go on, and leave nothing."""
        for sequence in self._open():
            if sequence.request.conversation == conversation:
                self._kv.leave_no_trace(sequence)
        removed = self._kv.forget(conversation)
        self._past_answers.forget(conversation)
        self._forget_drafts()
        return Forgetting(removed, self._then(lambda notes, files: notes.forget(conversation, files)))

    def forget_before(self, time_s: float) -> Forgetting:
        """Forget what was kept before a time, in seconds since 1970. Requests that came before go on, and leave nothing.

        What these have left since then is forgotten, with all that was kept until that had been.
        """
        until = counter_at(time_s, self._clock)
        ends = [ended_at for came_at, ended_at in self._lately if came_at < until <= ended_at]
        for answer in self._answers.values():
            if answer.came_at < until:
                ends.append(self._clock())
                for sequence in answer.open:
                    self._kv.leave_no_trace(sequence)
        time_s += max((end - until + KEPT_WITHIN_S for end in ends), default=0.0)
        removed = self._kv.forget_before(time_s)
        self._past_answers.forget_before(time_s)
        self._forget_drafts()
        return Forgetting(removed, self._then(lambda notes, files: notes.forget_before(time_s, files)))

    def _forget_drafts(self) -> None:
        """Forget all answers that drafts are made from, also of others: they only make some answers quicker."""
        if self._scheduler.speculation is not None:
            self._scheduler.speculation.forget()

    def _open(self) -> list[Sequence]:
        return [sequence for answer in self._answers.values() for sequence in answer.open]

    def _then(self, forget: Callable[[CacheNotes, Future[None]], Future[None]]) -> Future[None]:
        """Forget the notes once the files have gone: until then, all of it can be asked for again."""
        self._note_blocks()
        files = self._kv.forgotten()
        return files if self._notes is None else forget(self._notes, files)

    def _note_blocks(self) -> None:
        noted = self._kv.take_noted()
        if noted and self._notes is not None:
            self._notes.add_noted(noted)

    def close(self) -> None:
        """Store what was computed, and what was learned; return when it is safe."""
        self._kv.close()
        self._note_blocks()
        if self._cost_file is not None and (curve := self._costs.curve) is not None:
            self._cost_file.keep(curve)
        if self._notes is not None:
            self._notes.close()

    def _restore(self) -> list[Emitted]:
        restored = self._kv.restore(self._scheduler.running)
        return [emitted for sequence in restored for emitted in self._tag(sequence, sequence.progress())]

    def _compute(self, batch: Batch) -> list[Emitted]:
        started = self._clock()
        try:
            logits = self._runner.run(batch)
        except EngineError as error:
            return self._fail(batch, error)
        self._took_step(batch, self._clock() - started)
        return self._apply(batch, logits)

    def _took_step(self, batch: Batch, seconds: float) -> None:
        self._service.take_step(batch.rows, seconds, self._costs.step_s(batch.rows, self._kv.span(batch.read)))
        self._scheduler.take(batch)
        self._kv.take(batch, seconds)

    def _apply(self, batch: Batch, logits: Logits) -> list[Emitted]:
        started = self._clock()
        emitted: list[Emitted] = []
        row = chosen = 0
        for piece in batch.slices:
            rows = logits[row : row + piece.outputs]
            row += piece.outputs
            if not piece.sequence.done:  # another choice of its request may have failed in this loop
                known = len(piece.sequence.tokens)
                emitted += self._advance(piece, rows)
                chosen += len(piece.sequence.tokens) - known
        if chosen:
            self._costs.measure_sampling(chosen, self._clock() - started)
        return emitted

    def _advance(self, piece: Slice, logits: Logits) -> list[Emitted]:
        sequence = piece.sequence
        events = sequence.progress()
        if piece.outputs:
            before, known = sequence.last_token, len(sequence.tokens)
            try:
                events += sequence.take(logits, piece.draft)
            except EngineError as error:
                return self._tag(sequence, events) + self._fail_answer(sequence.request.id, error)
            tokens = sequence.tokens[known:]
            self._took_tokens(sequence, before, len(tokens))
            if piece.draft:
                self._kv.checked(sequence, common_length(piece.draft, tokens))
            if self._scheduler.speculation is not None:
                self._scheduler.speculation.took(sequence, tokens)
        return self._leave(sequence, events) if sequence.done else self._tag(sequence, events)

    def _fail(self, batch: Batch, error: EngineError) -> list[Emitted]:
        """A decode that failed says nothing about which sequence is to blame: all of its requests end here."""
        requests = dict.fromkeys(piece.sequence.request.id for piece in batch.slices)
        return [emitted for request_id in requests for emitted in self._fail_answer(request_id, error)]

    def _fail_answer(self, request_id: str, error: EngineError) -> list[Emitted]:
        """End all choices of a request."""
        emitted: list[Emitted] = []
        for sequence in self._answers.pop(request_id).open:
            emitted += self._tag(sequence, sequence.fail())
            self._scheduler.release(sequence, keep=False)
        return [*emitted, (request_id, error.as_event())]

    def _took_tokens(self, sequence: Sequence, before: float | None, tokens: int) -> None:
        """Take note of when tokens came: how long after the one before, or, if it is the first, when it was expected and wanted."""
        if before is not None and sequence.last_token is not None:
            self._service.take_tokens(sequence.last_token - before, tokens)
        if before is not None or sequence.index:
            return
        answer, deadline_s = self._answers[sequence.request.id], sequence.request.ttft_deadline_s
        if deadline_s is not None:
            now = self._clock()
            self._admission.took(sequence.request, was_late=now > answer.expected_at)
            self._service.take_first_token(is_late=now - answer.came_at > deadline_s)

    def _leave(self, sequence: Sequence, events: list[Event]) -> list[Emitted]:
        """Take out a choice that has finished; the last one finishes its request."""
        self._scheduler.release(sequence)
        answer = self._answers[sequence.request.id]
        finished = None if answer.open else answer.finished(self._why_no_drafts(sequence.request))
        if finished is not None:
            del self._answers[sequence.request.id]
            self._service.take_answer(finished)
            self._lately.append((answer.came_at, self._clock()))
            events = [*events, finished]
        if sequence.request.use_cache and not sequence.request.private:
            self._remember(sequence, finished)
        return self._tag(sequence, events)

    def _why_no_drafts(self, request: GenerateRequest) -> str:
        if self._scheduler.speculation is None:
            return NO_DRAFTS
        if request.speculate is Speculate.OFF:
            return "it is switched off"
        return "a deterministic answer is computed token by token" if request.deterministic else ""

    def _remember(self, sequence: Sequence, finished: Finished | None) -> None:
        """Keep what an answer may be of use for: its spelling, its report, its text for drafts."""
        if self._scheduler.speculation is not None:
            self._scheduler.speculation.ended(sequence)
        request, prompt_tokens = sequence.request, sequence.prompt_tokens
        spellings = self._past_answers.remember(request.namespace, sequence.tokens, prompt_tokens, request.conversation)
        if self._notes is not None:
            note = None if finished is None else Note(request.id, time.time(), prompt_tokens, finished.cache)
            self._notes.add(spellings, note, request.conversation)

    @staticmethod
    def _tag(sequence: Sequence, events: list[Event]) -> list[Emitted]:
        return [(sequence.request.id, event) for event in events]
