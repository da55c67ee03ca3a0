"""Whether a request is taken: what is taken keeps its promise, so what cannot be kept is refused at once, with the time to try again.

After Mooncake's early rejection (arXiv 2407.00079): the wait for the first token is predicted from the work that is here and
from what it costs on this machine, and corrected by how such predictions have turned out.
"""

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Some
from typing import Final

from pinyon.engine.config import Limits
from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import ClientLimitError, OverloadedError
from pinyon.engine.places import Need, Places
from pinyon.engine.request import GenerateRequest, Priority
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Foretold, Sequence, State
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.step_budget import StepBudget

LATE_SHARE: Final = 0.005
"""How many of the requests with a deadline may be answered later than was predicted."""
_FIRST, _MOST = 1.2, 4.0
_LEARNING: Final = 0.3
_EPISODE_S: Final = 1.0
"""What is late within so short a time has one cause."""
_FADING_S: Final = 900.0


class Prudence:
    """By how much predictions are stretched, so that reality exceeds no more than a share of those that promise something.

    It grows with each prediction that was too low, and shrinks a little with each that was not, in such a proportion that both
    cancel out at just that share. With time it fades: an overload that is over must not refuse anybody.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stretch = math.log(_FIRST)
        self._at = clock()
        self._late_at = -math.inf

    @property
    def factor(self) -> float:
        return math.exp(self._stretch * math.exp((self._at - self._clock()) / _FADING_S))

    def take(self, *, was_late: bool) -> None:
        """Learn from a first token, which came after the time that was predicted for it, or not."""
        before, now = self.factor, self._clock()
        if was_late and now - self._late_at < _EPISODE_S:
            return
        if was_late:
            self._late_at = now
        step = _LEARNING * ((1 - LATE_SHARE) if was_late else -LATE_SHARE)
        self._stretch, self._at = min(max(math.log(before) + step, 0.0), math.log(_MOST)), now


class Admission:
    """Refuses what exceeds the `limits`, or what would come too late."""

    def __init__(
        self,
        scheduler: Scheduler,
        kv: SharedKv,
        costs: CostModel,
        budget: StepBudget,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._costs = costs
        self._budget = budget
        self._limits = limits
        self._prudence = Prudence(clock)

    def require_place(self, choices: Some[Sequence], waited_s: float) -> float:
        """Return in how many seconds the first token of a new request is expected, `waited_s` after it came; note what was foretold.

        Raises:
            OverloadedError: the queue is full, or the first token would come after the request's deadline.
            ClientLimitError: too much of this client waits already.
        """
        request, waiting, limits = choices[0].request, self._scheduler.waiting, self._limits
        first_token_s = self._first_token_s(choices)
        free = max(0, self._kv.sequence_ids - len(self._scheduler.running))  # those wait for the next step only
        if len(waiting) + request.n > free + limits.queue:
            message = f"{len(waiting):,} answers wait already, the limit is {limits.queue:,}"
            raise OverloadedError(message, self._until_begun_s(waiting, len(waiting) + request.n - limits.queue))
        own = [each for each in waiting if each.request.client == request.client]
        if len(own) + request.n > free + limits.client_queue:
            message = f"{len(own):,} answers of this client wait already, the limit is {limits.client_queue:,}"
            raise ClientLimitError(message, self._until_begun_s(own, len(own) + request.n - limits.client_queue))
        deadline_s = request.ttft_deadline_s
        if deadline_s is not None and self._costs.is_measured and waited_s + first_token_s > deadline_s:
            raise OverloadedError(
                f"the first token is expected in {waited_s + first_token_s:.1f} s, it was wanted within {deadline_s:g} s",
                waited_s + first_token_s - deadline_s,
            )
        return first_token_s

    def took(self, request: GenerateRequest, *, was_late: bool) -> None:
        """Learn from a request with a deadline, whose first token came later than expected, or not."""
        if request.priority is Priority.INTERACTIVE:  # the batch class gives way also to those who come later
            self._prudence.take(was_late=was_late)

    def _until_begun_s(self, some: list[Sequence], number: int) -> float:
        """Return in how many seconds so many of some who wait are likely to have their place; all, where there are not so many."""
        queue = self._scheduler.in_order(self._scheduler.waiting)
        places = [place for place, each in enumerate(queue, 1) if each in some][:number]
        return self._place_s(self._scheduler.running, queue[: places[-1]] if places else queue)

    def _first_token_s(self, choices: Some[Sequence]) -> float:
        new = choices[0]
        running, ahead = self._scheduler.staying_for(new), self._scheduler.ahead_of(new.request)
        reading = [each for each in running if each.is_reading]
        lengths = [each.computed for each in running if each.state is State.DECODE]
        slowdown = self._slowdown(lengths, len(new.tokens) // 2)
        new.foretold = foretold = self._foretold(new, [*reading, *ahead])
        for choice in choices[1:]:
            choice.foretold = Foretold(0, 0.0)  # they share what the first one computes
        prompts_s = sum(self._rest_s(each.tokens, each.unknown_tokens) for each in reading)
        prompts_s += sum(each.foretold.prompt_s for each in ahead)
        place_s = self._place_s(running, [*ahead, new])
        last_step_s = self._decode_s([*lengths, len(new.tokens)])
        begins_s = max(place_s + prompts_s, prompts_s * slowdown)  # places come free in steps that prompts make longer
        first_token_s = begins_s + max(foretold.prompt_s * slowdown, last_step_s)
        is_alone = not running and not ahead
        return first_token_s if is_alone else first_token_s * self._prudence.factor

    def _foretold(self, new: Sequence, before: Some[Sequence]) -> Foretold:
        """Return what a new prompt needs beside what is there, or will be of those before it."""
        estimate = self._kv.estimate(new.request, new.tokens)
        held = self._kv.room_for(new) - (self._kv.cells - self._kv.held_cells)  # by others: it needs no cells for that
        coming = max((self._kv.shared_tokens(new, other) for other in before), default=0)
        prompt_s = estimate.compute_s + estimate.restore_s
        if coming > estimate.cached:
            prompt_s = self._rest_s(new.tokens, len(new.tokens) - coming)
        return Foretold(len(new.tokens) - max(held, coming), prompt_s)

    def _rest_s(self, tokens: Some[int], unknown: int) -> float:
        """Return how long the last tokens of a prompt take, which are not known."""
        return self._costs.alone_s(unknown, self._kv.span(len(tokens) - unknown))

    def _decode_s(self, lengths: Some[int]) -> float:
        """Return how long it takes until answers that have so many tokens each get one more."""
        return self._costs.step_s(len(lengths), self._kv.span(sum(lengths) / len(lengths)), len(lengths))

    def _slowdown(self, lengths: Some[int], length: int) -> float:
        """Return how much longer a prompt of so many tokens takes beside such answers than alone."""
        if not lengths:
            return 1.0
        step = self._budget.step(lengths, self._kv.used_cells)
        for each in lengths:
            step.take(1, each, chosen=1)
        rows, others = step.chunk_rows(length) or 1, len(lengths)
        span = self._kv.span((sum(lengths) + rows * length) / (others + rows))
        beside_s = self._costs.step_s(others + rows, span, others) / rows
        return max(1.0, beside_s / self._costs.prefill_s(1, self._kv.span(length)))

    def _place_s(self, running: Some[Sequence], waiting: Some[Sequence]) -> float:
        """Return how long it is until there is a place for the last of those who wait.

        Everyone who is here gets a token a step, and needs what is likely.
        """
        together = running or waiting[: self._kv.sequence_ids]
        token_s = self._decode_s([len(each.tokens) for each in together]) if together else 0.0
        shared = self._kv.held_cells - sum(each.own_cells for each in self._scheduler.running)
        share = self._scheduler.share_for(waiting[-1]) if waiting else 1.0
        places = Places(int(share * self._kv.cells) - shared, int(share * self._kv.sequence_ids))
        for each in running:
            unread_s = self._costs.alone_s(each.unknown_tokens) if each.is_reading else 0.0
            places.hold(self._need(each, each.own_cells + each.uncomputed, unread_s, token_s))
        for each in waiting:
            places.take(self._need(each, *each.foretold, token_s))
        return places.now_s

    def _need(self, sequence: Sequence, prompt_cells: int, prompt_s: float, token_s: float) -> Need:
        growth = self._scheduler.growth(sequence)
        return Need(
            prompt_cells + growth,
            prompt_s + growth * token_s,
            self._scheduler.is_long(sequence),
            sequence.request.deterministic,
        )
