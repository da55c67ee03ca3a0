"""A conversation as a tree: an edit or another answer makes a sibling, and a path from the root to a message is what a model sees."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pinyon.app.history.errors import NoMessageError
from pinyon.app.history.records import Message, Role


def told(path: Sequence[Message]) -> list[Message]:
    """Return which messages of a path a model is shown: the last system message, in front of all others that have text."""
    with_text = [message for message in path if message.text]
    system = [message for message in with_text if message.role is Role.SYSTEM][-1:]
    return [*system, *(message for message in with_text if message.role is not Role.SYSTEM)]


class Tree:
    """All messages of a conversation, as they were at one moment. A message whose parent is not there is a root."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = {message.id: message for message in sorted(messages, key=lambda message: message.id)}
        """By id, the oldest first."""
        self._children: dict[int | None, list[int]] = defaultdict(list)
        for message in self.messages.values():
            self._children[self._parent(message)].append(message.id)

    def _parent(self, message: Message) -> int | None:
        # A parent has the lower id. Whatever a file says, there is no way round in a circle.
        has_parent = message.parent in self.messages and message.parent < message.id
        return message.parent if has_parent else None

    def message(self, message: int) -> Message:
        """Return the message with this id. Raises NoMessageError."""
        try:
            return self.messages[message]
        except KeyError:
            raise NoMessageError(f"this conversation has no message {message}") from None

    def path(self, leaf: int | None = None) -> list[Message]:
        """Return the messages from the root to `leaf`, or to the one used last. Raises NoMessageError."""
        if leaf is None:
            leaf = max(self.messages, key=self._used, default=None)
        path = []
        while leaf is not None:
            path.append(self.message(leaf))
            leaf = self._parent(path[-1])
        return path[::-1]

    def siblings(self, message: int) -> list[int]:
        """Return the message and what stands beside it under the same parent, oldest first. Raises NoMessageError."""
        return [*self._children[self._parent(self.message(message))]]

    def leaf_below(self, message: int) -> int:
        """Return which of the message and all that follow it was used last. Raises NoMessageError."""
        below = [self.message(message).id]
        for each in below:
            below += self._children.get(each, ())
        return max(below, key=self._used)

    def _used(self, message: int) -> int:
        return self.messages[message].used
