"""What an answer says about its drafts: how many tokens, how many came true, and what that was worth."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec


class DraftReport(msgspec.Struct, frozen=True):
    """Of an answer's `steps` after its prompt: `tokens` came of them, `accepted` of the `drafted` ones among these.

    `depths[k]` steps had a draft of k tokens. `gain` is how many times as quick as without drafts the steps were, as predicted from what
    steps cost here. `drafter` is empty where nothing was drafted, and `off` says why where nothing could be.
    """

    drafter: str = ""
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    depths: dict[int, int] = {}
    gain: float = 1.0
    off: str = ""

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that came true; None where none was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(slots=True)
class DraftTally:
    """Counts for one choice. Seconds are predicted ones: of the steps as they were, and of plain ones for as many tokens."""

    drafter: str = ""
    depths: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    accepted: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0

    def add(self, drafter: str, depth: int, tokens: int, seconds: float, plain_s: float) -> None:
        """Count a step with a draft of `depth` tokens, which gave `tokens`: those that came true, and one more. A plain one takes `plain_s`."""
        self.drafter = drafter if depth else self.drafter
        self.depths[depth] += 1
        self.tokens += tokens
        self.accepted += tokens - 1
        self.seconds += seconds
        self.plain_s += tokens * plain_s


def draft_report(tallies: Iterable[DraftTally], off: str = "") -> DraftReport:
    """Return the report of a request with all its choices."""
    whole = DraftTally()
    for each in tallies:
        whole.drafter = whole.drafter or each.drafter
        whole.depths += each.depths
        whole.tokens += each.tokens
        whole.accepted += each.accepted
        whole.seconds += each.seconds
        whole.plain_s += each.plain_s
    drafted = sum(depth * steps for depth, steps in whole.depths.items())
    return DraftReport(
        drafter=whole.drafter,
        steps=whole.depths.total(),
        tokens=whole.tokens,
        drafted=drafted,
        accepted=whole.accepted,
        depths=dict(sorted(whole.depths.items())),
        gain=whole.plain_s / whole.seconds if whole.seconds else 1.0,
        off=off,
    )
