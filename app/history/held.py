"""A conversation in memory while this process works on it: all its messages, and what of it is not on disk yet."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from pinyon.app.history.records import Conversation, Message
from pinyon.app.history.rows import Change


class Stream:
    """What has come of a message since it was last put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasonings: list[str] = []

    def take(self) -> tuple[str, str]:
        """Return the text and the reasoning, and begin anew."""
        taken = "".join(self.texts), "".join(self.reasonings)
        self.texts.clear()
        self.reasonings.clear()
        return taken


@dataclass(slots=True)
class Held:
    """`record` and `messages` are as they are now; `columns` of the record and the `unsaved` messages are not on disk yet."""

    record: Conversation
    is_new: bool = False
    columns: set[str] = field(default_factory=set)
    messages: dict[int, Message] = field(default_factory=dict)
    unsaved: set[int] = field(default_factory=set)
    streams: dict[int, Stream] = field(default_factory=dict)

    @property
    def is_saved(self) -> bool:
        return not (self.is_new or self.columns or self.unsaved or self.streams)

    @property
    def last_used(self) -> int:
        """The highest number that a message has."""
        return max((message.used for message in self.messages.values()), default=0)

    def now(self) -> Conversation:
        """Return the record with its count."""
        return msgspec.structs.replace(self.record, messages=len(self.messages))

    def change(self, column: str, value: str | float | None) -> None:
        self.record = msgspec.structs.replace(self.record, **{column: value})
        self.columns.add(column)

    def put(self, message: Message) -> None:
        self.messages[message.id] = message
        self.unsaved.add(message.id)

    def catch_up(self) -> None:
        """Put together what has come of each message that streams."""
        for number, stream in self.streams.items():
            text, reasoning = stream.take()
            if text or reasoning:
                before = self.messages[number]
                self.put(
                    msgspec.structs.replace(before, text=before.text + text, reasoning=before.reasoning + reasoning)
                )

    def reload(self, record: Conversation, messages: Iterable[Message]) -> None:
        """Take what the file says, which other processes write too, but for what is newer here."""
        ours = {number: self.messages[number] for number in self.unsaved | self.streams.keys()}
        self.messages = {message.id: message for message in messages} | ours
        self.record = msgspec.structs.replace(record, **{name: getattr(self.record, name) for name in self.columns})

    def unsaved_part(self) -> Change:
        """Return what is not on disk."""
        unsaved = tuple(self.messages[number] for number in self.unsaved)
        return Change(self.record, self.is_new, frozenset(self.columns), unsaved)

    def saved(self, change: Change) -> None:
        """This is on disk now; what has changed since is not."""
        self.is_new = False
        if self.record is change.record:
            self.columns.clear()
        self.unsaved -= {message.id for message in change.messages if self.messages[message.id] is message}
