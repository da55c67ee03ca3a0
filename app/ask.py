"""What a door asks of a model: messages or raw text, and the sampling choices that were made explicitly."""

from typing import TypeAlias

import msgspec

from pinyon.engine.request import SamplingParams
from pinyon.models.chat_template import Message


class SamplingChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters by request; None leaves the model's own default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """Return the defaults with every choice put over them; zero is a choice."""
        chosen = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **chosen)


class RawText(msgspec.Struct, frozen=True):
    """Text that the model continues as it stands, without a chat template."""

    text: str


Prompt: TypeAlias = tuple[Message, ...] | RawText


class Ask(msgspec.Struct, frozen=True):
    """One answer that is wanted. `max_tokens` None means until the context ends."""

    prompt: Prompt
    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
