"""What the model picker says of a model: its row in the table, and below the table the verdict in whole."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pinyon.app.counted import memory
from pinyon.app.first_offer import suggestions
from pinyon.app.memory_bar import LEGEND, bar_text, memory_bar
from pinyon.app.tui import amounts
from pinyon.app.tui.model_rows import ModelRow
from pinyon.app.verdict import DeviceShare, Here, Verdict, leaving_for, verdict
from pinyon.models import catalog
from pinyon.models.memory.fit import Wish
from pinyon.models.memory.kv import KvType

TITLES: Final = ("Model", "", "Size", "Quant", "Memory", "Context", "tok/s")
KV_TYPES: Final = (None, KvType.F16, KvType.Q8_0, KvType.Q4_0)
CONTEXTS: Final = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
_CELL_BAR: Final = 8
_BAR: Final = 40


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with the verdict on it: None where nothing is known of the model, or not yet of the machine. `leaving` are the models that would
    leave memory for it.
    """

    row: ModelRow
    verdict: Verdict | None = None
    has_speeds: bool = False
    leaving: tuple[str, ...] = ()


def judged(row: ModelRow, here: Here | None, wish: Wish) -> Judged:
    """Judge a model. It is not asked for more context than it was trained for, nor for a type of KV that it cannot have."""
    if here is None or row.sizes is None:
        return Judged(row)
    wish = replace(wish, context_tokens=context_for(row, wish.context_tokens))
    return Judged(
        row,
        verdict(row.name, row.headers, row.sizes, here, wish),
        has_speeds=here.speed is not None,
        leaving=leaving_for(row.name, row.sizes, here, wish),
    )


def context_for(row: ModelRow, tokens: int | None) -> int | None:
    """Return how much context a model gets where so much is asked for: at most what it was trained for."""
    if tokens is None or row.sizes is None or not row.sizes.trained_context:
        return tokens
    return min(tokens, row.sizes.trained_context)


def contexts(rows: list[ModelRow], wished: int | None) -> list[int | None]:
    """Return the contexts to choose from: what suits the model, what was wished before, and steps up to what the models were trained for."""
    trained = max((row.sizes.trained_context for row in rows if row.sizes is not None), default=0)
    steps = {tokens for tokens in CONTEXTS if tokens <= trained}
    return [None, *sorted(steps | ({wished} if wished else set()))]


def cells(judged: Judged, *, is_current: bool) -> tuple[str, ...]:
    """Return a row of the table, in the order of TITLES. A speed that was not measured but predicted has a `~`."""
    row, found = judged.row, judged.verdict
    return (
        row.name,
        "in use" if is_current else "here" if row.is_here else "fetch",
        amounts.size(row.size_bytes) if row.size_bytes else "",
        row.quantization,
        "" if found is None else _bar(max(found.devices, key=_share_used), _CELL_BAR),
        "" if found is None else f"{found.context_tokens:,}" if found.fits else "no fit",
        _speed_cell(row, found),
    )


def verdict_lines(judged: Judged, word: str = "") -> list[str]:
    """Return what there is to say of a model's fit, quality and speed; nothing where it could not be judged.

    `word` is what the first run would offer it with.
    """
    found = judged.verdict
    if found is None:
        return []
    lines = [
        f"to begin with: {word}" if word else "",
        *(_device_line(share) for share in found.devices),
        LEGEND,
        _fit_line(found),
        _leaving_line(judged.leaving),
        *found.compromises,
        f"{found.quantization}, {found.bits_per_weight:.1f} bits per weight: {found.quality}",
        _speed_line(judged, found),
        found.faster,
    ]
    return [line for line in lines if line]


def words_to_begin_with(models: Iterable[Judged]) -> dict[str, str]:
    """Return, where no model is here, a word for each of the few that the first run would offer, by name."""
    found = []
    for each in models:
        if each.row.is_here:
            return {}
        entry = catalog.find(each.row.name)
        if each.verdict is not None and entry is not None and entry.chats:
            found.append(each.verdict)
    return {each.name: word for word, each in suggestions(found)}


def _fit_line(found: Verdict) -> str:
    if not found.fits:
        return f"does not fit: {found.remedy}"
    more = f"; up to {found.largest_context:,} fit in f16" if found.largest_context > found.context_tokens else ""
    return f"fits with {found.context_tokens:,} tokens of context, KV in {found.kv_type}{more}"


def _leaving_line(names: tuple[str, ...]) -> str:
    return f"not beside what is in memory: {', '.join(names)} will leave, once idle" if names else ""


def _speed_cell(row: ModelRow, found: Verdict | None) -> str:
    if row.tokens_per_s is not None:
        return f"{row.tokens_per_s:.0f}"
    return "" if found is None or found.speed is None else f"~{found.speed.decode_tokens_per_s:.0f}"


def _speed_line(judged: Judged, found: Verdict) -> str:
    measured = judged.row.tokens_per_s
    parts = [] if measured is None else [f"answers had {amounts.rate(measured)} here"]
    if (speed := found.speed) is not None:
        one, eight, prompt = speed.decode_tokens_per_s, speed.batch_tokens_per_s, speed.prefill_tokens_per_s
        parts.insert(0, f"predicted {amounts.rate(one)}, 8 clients {eight:,.0f}, prompts {prompt:,.0f}")
    elif not judged.has_speeds:
        parts.append("to predict speeds, weights have to be measured: m, some 15 s")
    return "; ".join(parts)


def _device_line(share: DeviceShare) -> str:
    return f"{share.device} {_bar(share, _BAR)} {memory(_used(share))} of {memory(share.budget_bytes)}"


def _bar(share: DeviceShare, width: int) -> str:
    sizes = (share.weights_bytes, share.kv_bytes, share.other_bytes)
    return bar_text(memory_bar(sizes, share.budget_bytes, width))


def _share_used(share: DeviceShare) -> float:
    return _used(share) / max(share.budget_bytes, 1)


def _used(share: DeviceShare) -> int:
    return share.weights_bytes + share.kv_bytes + share.other_bytes
