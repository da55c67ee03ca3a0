"""`pinyon run --dry-run`: what a prompt would cost. Nothing of it is computed, and nothing is kept."""

from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec

from pinyon.app.cli.exchange import Wish, asked, counted_attachments, ready
from pinyon.app.cli.terminal import for_stdout, print_json, tell
from pinyon.app.counted import counted
from pinyon.app.history.errors import HistoryFileError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinyon.app.history.history import History
    from pinyon.app.history.records import Answered
    from pinyon.engine.estimate import Estimate

TELLING_TOKENS: Final = 64
"""A prompt that computed fewer tells little about the speed."""


class AttachedTokens(msgspec.Struct, frozen=True):
    name: str
    tokens: int


class Cost(msgspec.Struct, frozen=True):
    """Tokens of a prompt, and how many of these are there already, by place. Seconds until its answer begins.

    Unless the seconds are measured, nothing was computed with this model yet, and they are a guess.
    """

    model: str
    context_tokens: int
    prompt_tokens: int
    cached_tokens: int
    resident: int
    ram: int
    disk: int
    compute_s: float
    restore_s: float
    is_measured: bool
    attached: tuple[AttachedTokens, ...]


async def dry_run(wish: Wish, *, as_json: bool) -> None:
    """Print what a wish would cost. Raises as `exchange`."""
    async with ready(wish, _tell_what_is_not_read) as (model, history, before):
        ask, _ = asked(wish, history, before)
        async with wish.limit.ends("what it would cost was not known"):
            estimate = await model.estimate(ask)
        compute_s, is_measured = _compute_s(estimate, _answers(history, model.name))
        attached = [AttachedTokens(file.name, file.tokens) for file in await counted_attachments(wish, model)]
        cost = Cost(
            model.name,
            model.context_tokens,
            estimate.prompt_tokens,
            estimate.cached,
            estimate.resident,
            estimate.ram,
            estimate.disk,
            round(compute_s, 3),
            round(estimate.restore_s, 3),
            is_measured,
            tuple(attached),
        )
    if as_json:
        print_json(cost)
    else:
        print(for_stdout("\n".join(_lines(cost))), flush=True)


def _tell_what_is_not_read(trouble: str) -> None:
    """Nothing was to be saved: what keeps the history from being written keeps it from being read as well."""
    tell(trouble.removeprefix("not saved: "))


def _answers(history: "History", model: str) -> "list[Answered]":
    """Return this model's last answers; none where the history cannot be read now, which is told."""
    try:
        return history.answers(model)
    except HistoryFileError as error:
        tell(str(error))
        return []


def _compute_s(estimate: "Estimate", answers: "Iterable[Answered]") -> tuple[float, bool]:
    """Return how long computing takes, and whether that was measured: here, or when earlier answers were given."""
    measured = ((each.usage.prompt_tokens - each.usage.cached_tokens, each.timings.prefill_s) for each in answers)
    rates = [tokens / seconds for tokens, seconds in measured if tokens >= TELLING_TOKENS and seconds > 0]
    if estimate.is_measured or not rates:
        return estimate.compute_s, estimate.is_measured
    return (estimate.prompt_tokens - estimate.cached) / median(rates), True


def _lines(cost: Cost) -> list[str]:
    places = [
        f"{tokens:,} {where}"
        for tokens, where in ((cost.resident, "in the context"), (cost.ram, "in RAM"), (cost.disk, "on disk"))
        if tokens
    ]
    guess = "" if cost.is_measured else " (a guess: how fast this model computes is not known)"
    return [
        f"model    {cost.model}, context {cost.context_tokens:,} tokens",
        f"prompt   {counted(cost.prompt_tokens, 'token')}",
        *(f"         {file.tokens:,} of them {file.name}" for file in cost.attached),
        f"cached   {counted(cost.cached_tokens, 'token')}{': ' if places else ''}{', '.join(places)}",
        f"begins   after {cost.compute_s + cost.restore_s:.1f} s{guess}",
    ]
