"""`pinyon run --dry-run`: what a prompt would cost. Nothing of it is computed, and nothing is kept."""

import msgspec

from pinyon.app.attachments import fenced
from pinyon.app.cli.answer import print_json
from pinyon.app.cli.exchange import Wish, asked, ready
from pinyon.app.cli.terminal import for_stdout


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
    async with ready(wish) as (model, history, before):
        ask, _ = asked(wish, history, before)
        estimate = await model.estimate(ask)
        attached = [AttachedTokens(file.name, await model.count(fenced(file))) for file in wish.attachments]
        cost = Cost(
            model.name,
            model.context_tokens,
            estimate.prompt_tokens,
            estimate.cached,
            estimate.resident,
            estimate.ram,
            estimate.disk,
            round(estimate.compute_s, 3),
            round(estimate.restore_s, 3),
            estimate.is_measured,
            tuple(attached),
        )
    if as_json:
        print_json(cost)
    else:
        print(for_stdout("\n".join(_lines(cost))), flush=True)


def _lines(cost: Cost) -> list[str]:
    places = [
        f"{tokens:,} {where}"
        for tokens, where in ((cost.resident, "in the context"), (cost.ram, "in RAM"), (cost.disk, "on disk"))
        if tokens
    ]
    guess = "" if cost.is_measured else " (a guess: nothing was computed yet)"
    return [
        f"model    {cost.model}, context {cost.context_tokens:,} tokens",
        f"prompt   {cost.prompt_tokens:,} tokens",
        *(f"         {file.tokens:,} of them {file.name}" for file in cost.attached),
        f"cached   {cost.cached_tokens:,} tokens{': ' if places else ''}{', '.join(places)}",
        f"begins   after {cost.compute_s + cost.restore_s:.1f} s{guess}",
    ]
