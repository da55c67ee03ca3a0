"""Tokens drafted ahead of answers, so that one step can check several of them: for whom how many.

A drafted token is kept where it is the one that is chosen anyway: the chooser is asked for one token after the other, with its penalties,
its grammar and its seed, and the first token that differs ends the draft. So answers are those of plain decoding.
"""

from collections.abc import Sequence
from typing import Final

from pinyon.engine.draft_depth import Depths, depths
from pinyon.engine.drafters import NOTHING, Drafter, Proposal
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.step_budget import Step

MAX_DRAFT: Final = 63
"""No draft has more tokens."""


class Speculation:
    """Drafts for the answers of a step. `outputs` is how many rows of a step can have logits."""

    def __init__(self, drafter: Drafter, *, outputs: int) -> None:
        self._drafter = drafter
        self._outputs = outputs
        self._step: dict[Choice, int] = {}
        """The place of each answer in `_depths`."""
        self._depths = Depths([], 0.0, 0.0)

    def drafts(self, answers: Sequence[Choice], step: Step, cells: int) -> dict[Choice, Sequence[int]]:
        """Return the tokens that are drafted for some of the answers in a step, in which each has its row; up to so many in all."""
        self._step = {each: number for number, each in enumerate(answers) if each.may_draft}
        if not self._step:
            return {}
        proposals = [self._proposal(each) for each in answers]
        room = min(self._outputs - len(answers), step.room, cells)
        chances = [each.chances for each in proposals]
        self._depths = depths(chances, step.seconds_with, rows=room, limit_s=step.draft_limit_s)
        drafted = zip(answers, proposals, self._depths.each, strict=True)
        return {each: proposal.tokens[:depth] for each, proposal, depth in drafted if depth}

    def _proposal(self, answer: Choice) -> Proposal:
        if not answer.may_draft:
            return NOTHING
        return self._drafter.propose(answer, min(MAX_DRAFT, answer.answer_room - 1))

    def took(self, answer: Choice, tokens: Sequence[int]) -> None:
        """Take note of the tokens that a step gave an answer; those of its draft are all but the last."""
        number = self._step.pop(answer, None)
        if number is None or not tokens:
            return
        each, seconds, plain_s = self._depths
        answer.drafting.add(self._drafter.name, each[number], len(tokens), seconds, plain_s)
        self._drafter.took(answer, tokens)

    def ended(self, answer: Choice) -> None:
        """Take note that an answer has ended."""
        self._drafter.ended(answer)

    def forget(self) -> None:
        """Keep nothing of what was asked and answered."""
        self._drafter.forget()
