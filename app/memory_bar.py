"""A line that shows what a model takes of a device: weights, KV, the rest, and what stays free."""

from collections.abc import Sequence
from typing import Final, NamedTuple


class Part(NamedTuple):
    """A stretch of the bar: its sign and how many cells it is long."""

    sign: str
    cells: int


SIGNS: Final = "█▓▒"
FREE: Final = "░"
OVER: Final = "!"
LEGEND: Final = f"{SIGNS[0]} weights  {SIGNS[1]} KV  {SIGNS[2]} buffers and process  {FREE} free  {OVER} lacking"


def memory_bar(sizes: Sequence[int], budget_bytes: int, width: int) -> list[Part]:
    """Return the parts of a bar of `width` cells that stands for the budget, or for what is needed if that is more.

    `sizes` are the bytes of up to three kinds, in the order of SIGNS. What goes beyond the budget is shown as lacking.
    """
    needed = sum(sizes)
    whole = max(needed, budget_bytes, 1)
    ends, total = [], 0
    for size in sizes:
        total += size
        ends.append(min(round(width * total / whole), round(width * budget_bytes / whole)))
    parts = [Part(sign, end - start) for sign, start, end in zip(SIGNS, [0, *ends[:-1]], ends, strict=False)]
    rest = width - (ends[-1] if ends else 0)
    parts.append(Part(OVER if needed > budget_bytes else FREE, rest))
    return [part for part in parts if part.cells]


def bar_text(parts: Sequence[Part]) -> str:
    return "".join(part.sign * part.cells for part in parts)
