"""How long ago, as people write it: 45m, 12h, 30d, 2w."""

import re
from typing import Final

from pinyon.app.errors import UsageError

_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def age_s(text: str, name: str) -> float:
    """Return an age in seconds. Raises UsageError, which names what it is for."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if match is None:
        raise UsageError(f"{name} is {text!r}: give a number of minutes, hours, days or weeks, as 45m, 12h, 30d or 2w")
    return int(match[1]) * _UNITS[match[2]]
