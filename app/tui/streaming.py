"""An answer on its way to the screen: all of it, and what has not been painted yet."""

from dataclasses import dataclass, field, replace

from pinyon.app.tui.shown import Shown


@dataclass
class Streaming:
    """`shown` is the message as it began."""

    shown: Shown
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    reasoning_tokens: int = 0
    _seen: tuple[int, int, int] = (0, 0, 0)

    def take(self, text: str, reasoning: str, reasoning_tokens: int) -> None:
        if text:
            self.text.append(text)
        if reasoning:
            self.reasoning.append(reasoning)
            self.reasoning_tokens += reasoning_tokens

    def so_far(self) -> Shown:
        return replace(
            self.shown,
            text=self.shown.text + "".join(self.text),
            reasoning=self.shown.reasoning + "".join(self.reasoning),
            reasoning_tokens=self.shown.reasoning_tokens + self.reasoning_tokens,
        )

    def unseen(self) -> tuple[str, str, int]:
        """Return text, reasoning and its tokens since the last call."""
        text, reasoning, tokens = self._seen
        self._seen = len(self.text), len(self.reasoning), self.reasoning_tokens
        return "".join(self.text[text:]), "".join(self.reasoning[reasoning:]), self.reasoning_tokens - tokens
