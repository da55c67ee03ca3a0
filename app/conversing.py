"""From a conversation to an answer: what the model is shown of it, the answer written down as it comes, and what an edit costs."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

import msgspec

from pinyon.app.ask import Ask, Chat, SamplingChoice, new_id
from pinyon.app.history.history import History
from pinyon.app.history.records import Answered, Conversation, Message, Role, State
from pinyon.app.service import Model
from pinyon.engine.events import Chunk, Event, Failed, Finished, FinishReason
from pinyon.engine.request import Grammar
from pinyon.models import chat_template

TITLE_CHARS: Final = 60

_AS_TOLD: Final[dict[Role, chat_template.Role]] = {
    Role.SYSTEM: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
}


class Choices(msgspec.Struct, frozen=True):
    """How an answer is to be made; fields as in Ask. `id` names the request: Model.cancel takes it."""

    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    use_cache: bool = True
    private: bool = False
    deterministic: bool | None = None
    id: str = msgspec.field(default_factory=new_id)

    def ask(self, chat: Chat, conversation: str) -> Ask:
        """Return what is asked of a model."""
        return Ask(
            chat,
            self.sampling,
            self.max_tokens,
            self.stop,
            grammar=self.grammar,
            use_cache=self.use_cache,
            private=self.private,
            deterministic=self.deterministic,
            conversation=conversation,
            id=self.id,
        )


class Update(NamedTuple):
    """An event of the answer whose message is `message`."""

    message: int
    event: Event


class EditCost(NamedTuple):
    """What a changed message costs before its answer begins.

    Of `prompt_tokens`, `cached_tokens` are there already. `lost_tokens` are those that are cached of the conversation as it
    stands and that the change makes useless; `compute_s` is how long the rest is expected to take, 0.0 while unknown.
    """

    prompt_tokens: int
    cached_tokens: int
    lost_tokens: int
    compute_s: float


def title_of(text: str) -> str:
    """Return the title of a conversation that begins with this text: the beginning of its first line that has words."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"


def as_chat(path: Sequence[Message], begun: str = "") -> Chat:
    """Return what a model is shown of the messages from the first to the last: their texts, without thoughts.

    The last system message stands for all, in front. Answers without text are left out. The model goes on with `begun`.
    """
    system = [message for message in path if message.role is Role.SYSTEM and message.text][-1:]
    rest = [message for message in path if message.role is not Role.SYSTEM and message.text]
    return Chat(
        tuple(chat_template.Message(_AS_TOLD[message.role], message.text) for message in (*system, *rest)), begun
    )


async def answer(
    history: History,
    model: Model,
    conversation: Conversation,
    parent: int,
    choices: Choices,
    begun: Message | None = None,
) -> AsyncGenerator[Update]:
    """Have the path to `parent` answered, and write the answer down as a child of it, piece by piece.

    With `begun`, a cut answer to the same parent, the new one starts with its text and goes on from there. Closing the iterator
    early cancels; what is there by then is kept.

    Raises:
        TemplateError: the model's template does not take the conversation. The message keeps the reason.
        AppError: the running server refuses, or is gone.
    """
    chat = as_chat(history.tree(conversation.id).path(parent), "" if begun is None else begun.text)
    ask = choices.ask(chat, conversation.id)
    async with contextlib.aclosing(written(history, model, conversation.id, parent, ask, begun)) as updates:
        async for update in updates:
            yield update


async def written(
    history: History, model: Model, conversation: str, parent: int, ask: Ask, begun: Message | None = None
) -> AsyncGenerator[Update]:
    """Generate what is asked, and write it down as a child of `parent`; else as `answer`."""
    text, reasoning = ("", "") if begun is None or not begun.text else (begun.text, begun.reasoning)
    message = history.add(conversation, parent, Role.ASSISTANT, text, reasoning=reasoning, state=State.STREAMING).id
    is_open, state, error = True, State.CANCELLED, ""
    try:
        async with contextlib.aclosing(model.generate(ask)) as events:
            async for event in events:
                _write(history, message, model, ask, event)
                is_open = not isinstance(event, Finished | Failed)
                yield Update(message, event)
    except Exception as reason:
        state, error = State.FAILED, str(reason)
        raise
    finally:
        if is_open:
            history.finish(message, state, None, error)


async def what_edit_costs(
    history: History, model: Model, conversation: Conversation, parent: int | None, text: str, choices: Choices
) -> EditCost:
    """Return what it costs to go on with `text` below `parent` instead of as the conversation stands. Raises as answer."""
    tree = history.tree(conversation.id)
    before = () if parent is None else tree.path(parent)
    said = chat_template.Message("user", text)
    edited = await model.estimate(choices.ask(Chat((*as_chat(before).messages, said)), conversation.id))
    standing = await model.estimate(choices.ask(as_chat(tree.path()), conversation.id))
    return EditCost(
        edited.prompt_tokens,
        edited.cached,
        max(0, standing.cached - edited.cached),
        edited.compute_s + edited.restore_s,
    )


def _write(history: History, message: int, model: Model, ask: Ask, event: Event) -> None:
    match event:
        case Chunk():
            history.stream(message, event.text, event.reasoning)
        case Finished():
            is_cancelled = event.reasons[0] is FinishReason.CANCELLED
            history.finish(message, State.CANCELLED if is_cancelled else State.COMPLETE, _answered(model, ask, event))
        case Failed():
            history.finish(message, State.FAILED, None, event.message)


def _answered(model: Model, ask: Ask, event: Finished) -> Answered:
    return Answered(
        model=model.name,
        digest=model.digest,
        settings=ask.sampling,
        finish_reason=event.reasons[0],
        usage=event.usage,
        timings=event.timings,
        cache=event.cache,
        seed=event.seed,
    )
