"""How people are served: how long steps and tokens take, what was promised and kept, who had to give way."""

import sys
from typing import Final

from pinyon.engine.events import Finished
from pinyon.engine.meters import PROMPT_ROWS, Pace, Service
from pinyon.engine.tally import Tally

STEP_S: Final = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ANSWER_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_S: Final = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
CLIENTS: Final = 8
"""Whose speed together is told."""
SLOW: Final = 10.0
SLOW_S: Final = 2.0
"""A step is reported that takes so many times as long as was predicted, and longer than this."""


class ServiceMeters:
    """Counts since the engine was started."""

    def __init__(self) -> None:
        self._queue_s, self._ttft_s = Tally(ANSWER_S), Tally(ANSWER_S)
        self._tpot_s, self._token_s = Tally(TOKEN_S), Tally(TOKEN_S)
        self._step_s, self._rows = Tally(STEP_S), Tally(ROWS)
        self._one_row = self._eight_rows = self._prompt_rows = Pace()
        self._draft_steps = self._drafted = self._accepted = 0
        self._slow_steps = self._cancelled = self._refused = self._in_time = self._late = 0

    def take_step(self, rows: int, seconds: float, predicted_s: float) -> None:
        """Count a step; say in the log if it took far longer than predicted."""
        self._step_s.add(seconds)
        self._rows.add(rows)
        if rows == 1:
            self._one_row = self._one_row.with_step(rows, seconds)
        elif rows == CLIENTS:
            self._eight_rows = self._eight_rows.with_step(rows, seconds)
        elif rows >= PROMPT_ROWS:
            self._prompt_rows = self._prompt_rows.with_step(rows, seconds)
        if seconds > max(SLOW_S, SLOW * predicted_s):
            self._slow_steps += 1
            print(f"a step of {rows} rows took {seconds:.1f} s, {predicted_s:.2f} s were predicted", file=sys.stderr)

    def take_answer(self, finished: Finished) -> None:
        """Count an answer's times and drafts."""
        usage, timings, drafts = finished.usage, finished.timings, finished.speculation
        self._draft_steps += drafts.steps
        self._drafted += drafts.drafted
        self._accepted += drafts.accepted
        self._queue_s.add(timings.queue_s)
        if usage.completion_tokens:
            self._ttft_s.add(timings.queue_s + timings.prefill_s)
        if (later := usage.completion_tokens // len(finished.reasons) - 1) > 0:
            self._tpot_s.add(timings.decode_s / later)

    def take_tokens(self, seconds: float, tokens: int) -> None:
        """Count tokens that came together, so long after the one before them."""
        for number in range(tokens):
            self._token_s.add(0.0 if number else seconds)

    def take_first_token(self, *, is_late: bool) -> None:
        """Count a first token, of a request that was promised one in time."""
        self._late += is_late
        self._in_time += not is_late

    def take_refusal(self) -> None:
        self._refused += 1

    def take_cancel(self) -> None:
        self._cancelled += 1

    def counted(self, *, preempted: int) -> Service:
        """Return what was counted, here and by the scheduler."""
        return Service(
            preempted=preempted,
            cancelled=self._cancelled,
            refused=self._refused,
            in_time=self._in_time,
            late=self._late,
            slow_steps=self._slow_steps,
            draft_steps=self._draft_steps,
            drafted=self._drafted,
            accepted=self._accepted,
            queue_s=self._queue_s.counts,
            ttft_s=self._ttft_s.counts,
            tpot_s=self._tpot_s.counts,
            token_s=self._token_s.counts,
            step_s=self._step_s.counts,
            step_rows=self._rows.counts,
            one_row=self._one_row,
            eight_rows=self._eight_rows,
            prompt_rows=self._prompt_rows,
        )
