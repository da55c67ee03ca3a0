"""Who has had how much: a virtual counter for each client (arXiv 2401.00588), so that the one with the least goes first.

Whoever has something waiting keeps his counter. Whoever comes, or comes back, starts where those are who wait: idling saves nothing
up. And who asks for much only moves his own counter. Between two clients who always want more, service differs by a bound that
does not grow with time.
"""

from collections import Counter
from typing import Final

PROMPT_WEIGHT: Final = 1
ANSWER_WEIGHT: Final = 2
"""What a computed token of a prompt, and one of an answer, count."""


class FairShare:
    """Counts for those who compete with one another. Who is not known has had as much as whoever was let in last."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._reached = 0.0
        """The most that anybody had had who was let in."""

    def had(self, client: str) -> float:
        return self._had.get(client, self._reached)

    def had_at_arrival(self, client: str) -> float:
        """Return what a client will have had when its next request waits."""
        if client in self._waiting:
            return self.had(client)
        return max(self.had(client), min(map(self.had, self._waiting), default=self._reached))

    def wait(self, client: str) -> None:
        """Count one more request of a client that waits."""
        had = self.had_at_arrival(client)
        self._had = {each: had for each, had in self._had.items() if had > self._reached or each in self._waiting}
        self._had[client] = had
        self._waiting[client] += 1

    def let_in(self, client: str) -> None:
        """Count one less that waits: it is computed from now on."""
        self._reached = max(self._reached, self.had(client))
        self.give_up(client)

    def give_up(self, client: str) -> None:
        """Count one less that waits: it has gone."""
        self._waiting -= Counter((client,))

    def charge(self, client: str, *, prompt: int = 0, answer: int = 0) -> None:
        """Count tokens that were computed for a client."""
        self._had[client] = self.had(client) + PROMPT_WEIGHT * prompt + ANSWER_WEIGHT * answer
