"""How amounts are written on screen: bytes, seconds and counts, each with its unit."""

from typing import Final

from pinyon.app.counted import counted

UNKNOWN: Final = "-"
_STEPS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(size_bytes: int) -> str:
    """Return bytes in the largest decimal unit that they reach, with two digits or more."""
    for unit_bytes, unit in _STEPS:
        if size_bytes >= unit_bytes:
            amount = size_bytes / unit_bytes
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:,.0f} {unit}"
    return f"{size_bytes} B"


def seconds(duration_s: float | None) -> str:
    """Return a duration: milliseconds below a tenth of a second."""
    if duration_s is None:
        return UNKNOWN
    if duration_s < 0.1:
        return f"{duration_s * 1e3:.0f} ms"
    return f"{duration_s:.2f} s" if duration_s < 10 else f"{duration_s:,.0f} s"


def rate(tokens_per_s: float | None) -> str:
    """Return a speed in tokens per second."""
    if tokens_per_s is None:
        return f"{UNKNOWN} tok/s"
    return f"{tokens_per_s:.1f} tok/s" if tokens_per_s < 100 else f"{tokens_per_s:,.0f} tok/s"


def cost(tokens: int | None, size_bytes: int) -> str:
    """Return what a text costs in tokens; as long as they are not counted, its size."""
    return size(size_bytes) if tokens is None else counted(tokens, "token")
