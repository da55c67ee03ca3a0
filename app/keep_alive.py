"""How long a model stays in memory after its last request, as a request may say it: seconds, "5m", "1h30m", 0 for not at all, -1 for ever."""

import math
import re
from typing import Final, NamedTuple, Self

_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


class KeepAlive(NamedTuple):
    """`seconds` None is for ever."""

    seconds: float | None

    @classmethod
    def of(cls, text: str | float) -> Self:
        """Return what is meant. Raises ValueError."""
        seconds = text if isinstance(text, int | float) else _seconds(text.strip())
        if not math.isfinite(seconds):
            raise ValueError("it is no length of time")
        return cls(None if seconds < 0 else float(seconds))


def _seconds(text: str) -> float:
    digits = text.removeprefix("-")
    parts = _PART.findall(digits)
    if parts and "".join(amount + unit for amount, unit in parts) == digits:
        seconds = sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", digits):
        seconds = float(digits)
    else:
        raise ValueError('give seconds, or a text like "5m" or "1h30m"; 0 is not at all, -1 is for ever')
    return -seconds if digits != text else seconds
