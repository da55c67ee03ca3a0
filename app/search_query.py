"""What is searched for, as one types it: words, and filters among them."""

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pinyon.app.ages import age_s
from pinyon.app.errors import UsageError
from pinyon.app.history.records import Role

_FILTER: Final = re.compile(r"(?<!\S)(role|model|since):(\S+)", re.IGNORECASE)


class Query(NamedTuple):
    """What is looked for: `since` in seconds since 1970."""

    words: str
    role: Role | None = None
    model: str | None = None
    since: float | None = None


def query_of(text: str, clock: Callable[[], float] = time.time) -> Query:
    """Return the query that a text is. Raises UsageError for a filter that makes no sense (`role:x`, `since:soon`)."""
    role, model, since = None, None, None

    def filtered(match: re.Match[str]) -> str:
        nonlocal role, model, since
        name, value = match[1].lower(), match[2]
        if name == "model":
            model = value
        elif name == "since":
            since = clock() - age_s(value.lower(), "since")
        elif value.lower() in set(Role):
            role = Role(value.lower())
        else:
            raise UsageError(f"role is {value!r}: it can be {', '.join(Role)}")
        return ""

    words = " ".join(_FILTER.sub(filtered, text).split())
    return Query(words, role, model, since)
