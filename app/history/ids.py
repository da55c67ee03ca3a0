"""Numbers of messages: given at once, by several processes, in the order of time, and never the same twice."""

import secrets
from typing import Final

_RANDOM_BITS: Final = 20
"""What is left of 63 bits are milliseconds until the year 2248."""


def first_id(at_s: float) -> int:
    """Return an id below every one that is given from this time on (seconds since 1970)."""
    return max(0, int(at_s * 1000)) << _RANDOM_BITS


def new_id(at_s: float, after: int) -> int:
    """Return an id for this time that is higher than `after`, also where a clock was set back."""
    return max(first_id(at_s), after + 1) + secrets.randbits(_RANDOM_BITS)
