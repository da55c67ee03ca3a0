"""What the history holds: conversations, and the messages that make a tree in each of them."""

from enum import StrEnum
from itertools import accumulate

import msgspec

from pinyon.app.ask import SamplingChoice
from pinyon.app.attachments import GAP
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.events import FinishReason, Timings, Usage


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class State(StrEnum):
    """How far a message has come. INTERRUPTED: its process died while it streamed."""

    STREAMING = "streaming"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Attached(msgspec.Struct, frozen=True):
    """What was attached to a message; `chars` of the message's text are its, 0 where an earlier version did not note it.
    `tokens` are 0 where they were not counted.

    What is attached stands before all else in the text, in its order, each followed by an empty line.
    """

    name: str
    size_bytes: int
    tokens: int
    chars: int = 0


class Answered(msgspec.Struct, frozen=True):
    """How an answer was made. `digest` is the SHA-256 of the weights in hex, "" where it was not known.

    `reasoning_s` is how long the model thought, in seconds; 0.0 also where an earlier version did not note it.
    """

    model: str
    digest: str
    settings: SamplingChoice
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    cache: CacheReport = CacheReport()
    seed: int | None = None
    reasoning_s: float = 0.0
    speculation: DraftReport = DraftReport()


class Message(msgspec.Struct, frozen=True):
    """A node of a conversation's tree; `created_at` is in seconds since 1970.

    A message has a higher id than its parent and its elder siblings. `used` says which of several messages was shown last: the
    one with the highest number. `answered` is None until the answer has ended, and where another version of Pinyon wrote it
    in a way that this one cannot read.
    """

    id: int
    conversation: str
    parent: int | None
    role: Role
    text: str
    reasoning: str
    state: State
    created_at: float
    answered: Answered | None = None
    attached: tuple[Attached, ...] = ()
    error: str = ""
    used: int = 0

    @property
    def attached_texts(self) -> tuple[str, ...]:
        """The text of each of `attached`; empty where that is not known."""
        starts = accumulate((each.chars + len(GAP) for each in self.attached), initial=0)
        return tuple(self.text[at : at + each.chars] for each, at in zip(self.attached, starts, strict=False))

    @property
    def typed(self) -> str:
        """The user's own words: the text without what was attached, as far as that is known."""
        return self.text[sum(each.chars + len(GAP) for each in self.attached if each.chars) :]


class Conversation(msgspec.Struct, frozen=True):
    """`model` answered last, `messages` is how many there are. Times are in seconds since 1970; `deleted_at` None is not deleted."""

    id: str
    title: str
    created_at: float
    updated_at: float
    model: str
    messages: int = 0
    deleted_at: float | None = None


class Found(msgspec.Struct, frozen=True):
    """A message that a search found: a piece of its text in one line, and where in that the words are (start, end)."""

    conversation: Conversation
    message: int
    role: Role
    snippet: str
    matches: tuple[tuple[int, int], ...]
