"""What the transcript shows of a message, and what a user can ask to be done with one."""

from dataclasses import dataclass
from enum import StrEnum

from pinyon.app.history.records import Role, State


@dataclass(frozen=True)
class Shown:
    """A message as the transcript shows it. Its strings may come from anywhere: they are shown as they stand, less control codes."""

    id: int
    role: Role
    text: str = ""
    reasoning: str = ""
    state: State = State.COMPLETE
    footer: str = ""
    siblings: tuple[int, int] = (0, 1)
    """Which of how many versions this is; the first is 0."""
    attachments: tuple[str, ...] = ()
    """A title for each."""
    error: str = ""
    reasoning_s: float = 0.0
    """How long it thought; 0 where that is not known, as are 0 tokens."""
    reasoning_tokens: int = 0
    is_cut: bool = False
    """Whether it is an answer that has more to say."""
    attached_text: str = ""
    """What is attached, which is only shown when the user asks for it; empty where it is part of the text."""


class MessageAction(StrEnum):
    """By their ids in the table of actions."""

    EDIT = "edit"
    REGENERATE = "regenerate"
    CONTINUE = "go_on"
    PREVIOUS = "previous"
    NEXT = "next"
    COPY = "copy"
    DELETE = "delete"
    ATTACHMENTS = "attachments"


def actions_of(shown: Shown) -> tuple[MessageAction, ...]:
    """Return what can be done with a message."""
    if shown.state is State.STREAMING:
        return (MessageAction.COPY,)
    own = {
        Role.USER: (MessageAction.EDIT, *((MessageAction.ATTACHMENTS,) if shown.attached_text else ())),
        Role.ASSISTANT: (MessageAction.REGENERATE, *((MessageAction.CONTINUE,) if shown.is_cut else ())),
        Role.SYSTEM: (MessageAction.EDIT,),
    }[shown.role]
    index, count = shown.siblings
    versions = (
        *((MessageAction.PREVIOUS,) if index > 0 else ()),
        *((MessageAction.NEXT,) if index + 1 < count else ()),
    )
    return (*own, *versions, MessageAction.COPY, MessageAction.DELETE)
