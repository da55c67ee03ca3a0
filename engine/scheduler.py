"""Who computes what in the next step. Knows counts of tokens and cells; never touches native code itself.

Answers that are being read come first, then the prompts of those who wait for one, then the batch class: as much of each as
the step has time for. Within a class the client goes first who has had the least, but one at a time who has waited for too long
is let through. Cells are taken as they are used. When they run out, sequences give theirs back, the batch class before the
others and the newest before the older ones, and go on later: what they had computed is kept in blocks, as far as there is room.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

from pinyon.engine.answer_lengths import AnswerLengths
from pinyon.engine.batch import Batch, Slice
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.config import Limits
from pinyon.engine.events import FinishReason
from pinyon.engine.fair_share import FairShare
from pinyon.engine.request import GenerateRequest, Priority
from pinyon.engine.sequence import ComingPrefix, Sequence, State
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.speculation import Speculation
from pinyon.engine.step_budget import Step, StepBudget

MIN_SHARED_TOKENS: Final = 16
"""A prompt waits for another one that is computing at least so many tokens that both begin with."""
KEPT_SHARE: Final = 1 / 8
"""Of the cells and sequence ids, kept for clients of whom nothing runs: who asks for much leaves room for who comes next."""
PATIENCE_S: Final = 20.0
"""Who has got no token for so long, the oldest of them, comes before all others until its end; so long after it the next one may."""
_WHOLE: Final = (FinishReason.STOP, FinishReason.LENGTH)
"""The ends that tell how long answers get."""


def _most_cells(lives: list[tuple[int, int]]) -> int:
    """Return how many cells are held at most: everybody has some, and one more after each step, for so many steps until all go."""
    held, most = sum(cells for _, cells in lives), 0
    for ended, (steps, cells) in enumerate(sorted(lives)):
        most = max(most, held + steps * (len(lives) - ended))
        held -= cells
    return most


class Scheduler:
    """Continuous batching: requests join and leave between steps."""

    def __init__(
        self,
        kv: SharedKv,
        budget: StepBudget,
        limits: Limits,
        lengths: AnswerLengths | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kv = kv
        self._budget = budget
        self.speculation = speculation
        self._clock = clock
        self._shares = {priority: FairShare() for priority in Priority}
        self._long_share = limits.long_share
        self._lengths = lengths or AnswerLengths()
        self._numbers = itertools.count()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        """In the order of admission."""
        self.preemptions = 0
        self._favoured: Sequence | None = None
        self._favour_from = 0.0

    def add(self, sequence: Sequence) -> None:
        sequence.number = next(self._numbers)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        self._share_of(sequence.request).wait(sequence.request.client)
        self.waiting.append(sequence)

    def _share_of(self, request: GenerateRequest) -> FairShare:
        return self._shares[request.priority]

    def admit(self) -> None:
        """Start those that fit, in order, until one does not.

        One whose beginning is being computed by another waits for that: both get it sooner. A long one waits for the long one
        that runs, and one of a client who has others running leaves the last room to clients who have none: neither holds anybody up.
        """
        self._favour()
        modest: set[str] = set()
        for sequence in self.in_order(self.waiting):
            client = sequence.request.client
            if client in modest or self._prefix_is_coming(sequence) or self._must_wait_for_long_one(sequence):
                continue
            if self._must_leave_room(sequence):
                modest.add(client)
                continue
            if not self._start(sequence):
                return

    def schedule(self) -> Batch:
        """Return the next step's rows. There are none while everyone waits for blocks to come back."""
        while True:
            batch = Batch(tuple(self._slices()))
            if self._kv.make_room(batch.rows):
                return batch
            self._preempt(self._last())

    # Who runs

    def in_order(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return sequences in the order in which they have their turn: by class, by what their clients have had, by arrival."""
        return sorted(sequences, key=self._turn)

    def ahead_of(self, request: GenerateRequest) -> list[Sequence]:
        """Return who waits and would have its turn before a request that came now, in order."""
        had = self._share_of(request).had_at_arrival(request.client)
        turn = request.priority is not Priority.INTERACTIVE, had, math.inf
        return [each for each in self.in_order(self.waiting) if self._turn(each) < turn]

    def _turn(self, sequence: Sequence) -> tuple[bool, float, float]:
        is_favoured = sequence is self._favoured
        had = -math.inf if is_favoured else self._share_of(sequence.request).had(sequence.request.client)
        return not self.is_urgent(sequence), had, sequence.number

    def is_urgent(self, sequence: Sequence) -> bool:
        """Whether a sequence comes before the batch class."""
        return sequence.request.priority is Priority.INTERACTIVE or sequence is self._favoured

    def staying_for(self, sequence: Sequence) -> list[Sequence]:
        """Return the running ones that would not give way to a sequence."""
        if not self.is_urgent(sequence):
            return self.running
        return [each for each in self.running if self.is_urgent(each) or each.request.deterministic]

    def _favour(self) -> None:
        """Let through who has waited for too long: cells are lost to others again and again, or clients come that have had less."""
        if self._favoured is None and (now := self._clock()) >= self._favour_from:
            batch = (each for each in self.running if not self.is_urgent(each))
            without_token = (
                each for each in (*self.waiting, *batch) if now - (each.last_token or each.created) >= PATIENCE_S
            )
            self._favoured = min(without_token, key=attrgetter("number"), default=None)

    def _last(self) -> Sequence:
        """Return the running one that gives way first."""
        return max(self.running, key=lambda each: (not self.is_urgent(each), each.number))

    def _start(self, sequence: Sequence) -> bool:
        """Start a sequence if it fits, also in the place of some of the batch class."""
        if not self._has_room_for(sequence, self.staying_for(sequence)):
            return False
        while not (self._has_room_for(sequence, self.running) and self._kv.begin(sequence)):
            if self.is_urgent(last := self._last()):
                return False
            self._preempt(last)
        self.waiting.remove(sequence)
        self._share_of(sequence.request).let_in(sequence.request.client)
        self.running.append(sequence)
        return True

    def _has_room_for(self, sequence: Sequence, others: list[Sequence], share: float = 1.0) -> bool:
        """Whether it fits beside others into a share of all room, at every moment, if everybody gets a token a step, as many as are likely.

        Alone it always does.
        """
        if not others:
            return True
        if sequence.request.deterministic or self._is_deterministic or len(others) >= share * self._kv.sequence_ids:
            return False
        lives = [(self.growth(each), each.own_cells + each.uncomputed) for each in others]
        lives.append((self.growth(sequence), len(sequence.tokens)))
        room = self._kv.room_for(sequence) + sum(each.own_cells for each in self.running)
        return _most_cells(lives) <= room - (1 - share) * self._kv.cells

    def growth(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence is likely to add to those it has."""
        return min(self._lengths.rest(sequence.completion_tokens), sequence.answer_room)

    def share_for(self, sequence: Sequence) -> float:
        """Return how much of all room a sequence may fill. The batch class may fill it all, since it gives way."""
        is_first = all(each.request.client != sequence.request.client for each in self.running)
        return 1.0 if is_first or not self.is_urgent(sequence) else 1 - KEPT_SHARE

    def _must_leave_room(self, sequence: Sequence) -> bool:
        share = self.share_for(sequence)
        return share < 1 and not self._has_room_for(sequence, self.staying_for(sequence), share)

    def _must_wait_for_long_one(self, sequence: Sequence) -> bool:
        return self.is_long(sequence) and any(map(self.is_long, self.staying_for(sequence)))

    def is_long(self, sequence: Sequence) -> bool:
        """Whether what a sequence has, prompt and answer, takes so many cells of its own that there must be no second one."""
        limit = self._long_share * self._kv.cells
        if len(sequence.tokens) <= limit:  # as most: no look at what they share
            return False
        return len(sequence.tokens) - self._kv.shared_cells(sequence) > limit

    @property
    def _is_deterministic(self) -> bool:
        """Whether a deterministic request runs, which nobody else does then."""
        return bool(self.running) and self.running[0].request.deterministic

    def _prefix_is_coming(self, sequence: Sequence) -> bool:
        if sequence.coming is None or sequence.coming.is_over:
            sequence.coming = self._coming_prefix(sequence)
        return sequence.coming is not None

    def _coming_prefix(self, sequence: Sequence) -> ComingPrefix | None:
        """Return the longest beginning that another one will have soon, if enough of it is not here yet."""
        readers = (other for other in self.staying_for(sequence) if other.is_reading)
        found = (ComingPrefix(other, self._kv.shared_tokens(sequence, other)) for other in readers)
        longest = max((each for each in found if not each.is_over), key=attrgetter("tokens"), default=None)
        if longest is None or longest.tokens < self._kv.known_tokens(sequence) + MIN_SHARED_TOKENS:
            return None
        self._kv.expect(longest.other, longest.tokens)
        return longest

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence, keep=True)
        sequence.lose_cells()
        self._wait(sequence)
        self.preemptions += 1

    # What they compute

    def _slices(self) -> Iterator[Slice]:
        """Yield the rows of answers, with drafts if nobody's prompt has to be computed, then prompts, as many as the step has time for."""
        runnable = [each for each in self.in_order(self.running) if not each.is_restoring]
        urgent = [each for each in runnable if self.is_urgent(each)]
        others = [each for each in runnable if not self.is_urgent(each)]
        step = self._budget.step([each.computed for each in urgent if each.state is State.DECODE], self._kv.used_cells)
        answers: list[Sequence] = []
        prompts: list[Slice] = []
        for group in (urgent, others):
            for sequence in group:
                length, is_due = sequence.computed, group is urgent or step.is_empty
                if sequence.state is State.DECODE and (is_due or step.has_room(length)):
                    step.take(1, length, chosen=1)
                    answers.append(sequence)
            prompts += self._prompt_slices(group, step)
        drafts = self._drafts(answers, step) if not prompts else {}
        yield from (Slice.of_answer(each, tuple(drafts.get(each, ()))) for each in answers)
        yield from prompts

    def _drafts(self, answers: list[Sequence], step: Step) -> Mapping[Sequence, Iterable[int]]:
        if self.speculation is None or not answers:
            return {}
        return self.speculation.drafts(answers, step, self._kv.cells - self._kv.held_cells - len(answers))

    def _prompt_slices(self, group: list[Sequence], step: Step) -> Iterator[Slice]:
        """Yield as much of the prompts as there is time for; one joins a started chunk only if all that is left of it fits."""
        prompts = [each for each in group if each.state is State.PREFILL]
        if not prompts:
            return
        least = 1 if self.is_urgent(prompts[0]) or step.is_empty else 0  # so that nobody waits for ever
        chunk = room = BLOCK_TOKENS if self._is_deterministic else step.chunk_rows(prompts[0].computed) or least
        for sequence in prompts:
            rows = min(sequence.uncomputed, sequence.until_stop, chunk)
            rows -= rows % BLOCK_TOKENS if rows > BLOCK_TOKENS else 0  # the rest alone, wherever it was cut before
            if rows <= room and room:
                room -= rows
                step.take(rows, sequence.computed)
                yield Slice.of(sequence, rows)

    def take(self, batch: Batch) -> None:
        """Take note of what was computed for whom."""
        for piece in batch.slices:
            request, answer = piece.sequence.request, int(piece.sequence.state is State.DECODE)
            self._share_of(request).charge(request.client, prompt=piece.rows - answer, answer=answer)

    # Who leaves

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it is; `keep` what it has computed for others, as long as there is room."""
        if sequence is self._favoured:
            self._favoured, self._favour_from = None, self._clock() + PATIENCE_S
        if sequence.leaf is None:
            self.waiting.remove(sequence)
            self._share_of(sequence.request).give_up(sequence.request.client)
            return
        if sequence.reason in _WHOLE:
            self._lengths.take(sequence.completion_tokens)
        self._leave(sequence, keep=keep)

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        self.running.remove(sequence)
        if keep:
            self._kv.rest(sequence)
        else:
            self._kv.drop(sequence)

    def check(self) -> None:
        """Raise AssertionError if a sequence id or a cell is lost or held twice. Meant for idle time and tests."""
        self._kv.check()
