"""OpenAI's messages to the ones that chat templates know."""

from typing import Annotated, Literal

from pydantic import AfterValidator, JsonValue

from pinyon.app.api.errors import invalid
from pinyon.app.api.fields import Fields, bounded
from pinyon.app.limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOL_CALLS
from pinyon.models.chat_template import Message, Role

_ROLES: dict[str, Role] = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_UNSERVED_PARTS = {
    "image_url": "images are not supported yet",
    "input_audio": "audio is not supported yet",
    "file": "files are not supported yet",
}


class Part(Fields):
    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def shown(self) -> str | None:
        """Its text; None for a part of another kind, or without one."""
        return {"text": self.text, "refusal": self.refusal}.get(self.type)


class ChatMessage(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], bounded(MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[JsonValue], bounded(MAX_TOOL_CALLS)] | None = None

    def as_message(self, place: str) -> Message:
        """Return the message as templates take it: one text, and the roles that they know.

        Raises:
            ApiError: it has a part, a role or calls that are not served; `place` is its name in the error.
        """
        if self.role not in _ROLES or self.tool_calls:
            param = f"{place}.tool_calls" if self.tool_calls else f"{place}.role"
            raise invalid(param, "tools are not supported yet: leave tool calls and their results out")
        return Message(_ROLES[self.role], self._text(place))

    def _text(self, place: str) -> str:
        if isinstance(self.content, str):
            return self.content
        texts = []
        for index, part in enumerate(self.content or ()):
            if part.shown is None:
                why = _UNSERVED_PARTS.get(part.type, "a part has the type `text` and a text")
                raise invalid(f"{place}.content.{index}", f"{why}; this one has the type {part.type[:40]!r}")
            texts.append(part.shown)
        return "\n".join(texts)


def _few_parts(messages: list[ChatMessage]) -> list[ChatMessage]:
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    if parts > MAX_PARTS:
        raise ValueError(f"they have {parts:,} content parts, the limit is {MAX_PARTS:,}")
    return messages


Messages = Annotated[list[ChatMessage], bounded(MAX_MESSAGES, 1), AfterValidator(_few_parts)]
