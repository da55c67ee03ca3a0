"""What a door asks of a model: messages, text or tokens, and the choices that were made explicitly."""

import secrets
from typing import TypeAlias

import msgspec

from pinyon.engine.request import Grammar, Priority, SamplingParams, Speculate
from pinyon.models.chat_template import Message


class SamplingChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters by request; None leaves the model's own default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """Return the defaults with every choice put over them; zero is a choice."""
        chosen = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **chosen)


class Chat(msgspec.Struct, frozen=True, tag="chat"):
    """Messages, for the model's chat template. `begun` is how the answer begins: the model goes on from there."""

    messages: tuple[Message, ...]
    begun: str = ""


class RawText(msgspec.Struct, frozen=True, tag="text"):
    """Text that the model continues as it stands, without a chat template."""

    text: str


class RawTokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokens that the model continues as they are."""

    ids: tuple[int, ...]


Prompt: TypeAlias = Chat | RawText | RawTokens


def new_id() -> str:
    return secrets.token_hex(8)


class Ask(msgspec.Struct, frozen=True):
    """What is wanted: `n` answers to one prompt. `max_tokens` None means until the context ends.

    `logprobs`, `use_cache`, `private`, `deterministic`, `namespace`, `conversation`, `priority`, `client`, `ttft_deadline_s`, `speculate` and
    `ignore_eos` are as in the engine's request; `deterministic` and `speculate` None are what the settings say. `id` names the request from here to
    the engine.
    """

    prompt: Prompt
    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    grammar: Grammar | None = None
    use_cache: bool = True
    private: bool = False
    deterministic: bool | None = None
    namespace: str = ""
    conversation: str | None = None
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    ttft_deadline_s: float | None = None
    speculate: Speculate | None = None
    ignore_eos: bool = False
    id: str = msgspec.field(default_factory=new_id)
