"""From a conversation to an answer: what the model is shown of it, the answer written down as it comes, and what an edit costs."""

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pinyon.app.ask import Ask, Chat, SamplingChoice
from pinyon.app.history.history import History
from pinyon.app.history.records import Answered, Conversation, Message, Role, State
from pinyon.app.history.tree import told
from pinyon.engine.events import Chunk, Event, Failed, Finished, FinishReason
from pinyon.models import chat_template

if TYPE_CHECKING:
    from pinyon.app.service import Model

TITLE_CHARS: Final = 60

_AS_TOLD: Final[dict[Role, chat_template.Role]] = {
    Role.SYSTEM: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
}


class Choices(msgspec.Struct, frozen=True):
    """How the answers of a chat are made; fields as in Ask."""

    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    private: bool = False

    def ask(self, chat: Chat, conversation: str) -> Ask:
        """Return what is asked of a model."""
        return Ask(chat, self.sampling, self.max_tokens, private=self.private, conversation=conversation)


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
    return Chat(tuple(chat_template.Message(_AS_TOLD[message.role], message.text) for message in told(path)), begun)


async def written(
    history: History,
    model: "Model",
    conversation: str,
    parent: int,
    ask: Ask,
    begun: Message | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[Update]:
    """Generate what is asked, and write the answer down as a child of `parent`, piece by piece.

    With `begun`, a cut answer to the same parent, the new one starts with its text and goes on from there. Closing the iterator
    early cancels; what is there by then is kept.

    Raises:
        TemplateError: the model's template does not take the conversation. The message keeps the reason.
        AppError: the running server refuses, or is gone.
    """
    text, reasoning = ("", "") if begun is None or not begun.text else (begun.text, begun.reasoning)
    message = history.add(conversation, parent, Role.ASSISTANT, text, reasoning=reasoning, state=State.STREAMING).id
    is_open, state, error = True, State.CANCELLED, ""
    thinking = _Thinking(clock)
    try:
        async with contextlib.aclosing(model.generate(ask)) as events:
            async for event in events:
                thinking.take(event)
                _write(history, message, model, ask, event, thinking.seconds)
                is_open = not isinstance(event, Finished | Failed)
                yield Update(message, event)
    except Exception as reason:
        state, error = State.FAILED, str(reason)
        raise
    finally:
        if is_open:
            history.finish(message, state, None, error)


class _Thinking:
    """How long a model thinks: from its first thought to the first text of its answer, or to the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._since: float | None = None
        self._is_over = False

    def take(self, event: Event) -> None:
        if self._is_over or not isinstance(event, Chunk | Finished):
            return
        if self._since is not None:
            self.seconds = self._clock() - self._since
        elif isinstance(event, Chunk) and event.reasoning:
            self._since = self._clock()
        self._is_over = isinstance(event, Finished) or bool(event.text)


async def context_taken(model: "Model", path: Sequence[Message], choices: Choices) -> int:
    """Return how many tokens the messages take in the model's context, the last one as far as it is written. Raises as written."""
    if not path:
        return 0
    *before, last = path
    chat = as_chat(before, last.text) if last.role is Role.ASSISTANT else as_chat(path)
    return (await model.estimate(choices.ask(chat, last.conversation))).prompt_tokens


async def what_edit_costs(
    history: History, model: "Model", conversation: Conversation, parent: int | None, text: str, choices: Choices
) -> EditCost:
    """Return what it costs to go on with `text` below `parent` instead of as the conversation stands. Raises as written."""
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


def _write(history: History, message: int, model: "Model", ask: Ask, event: Event, reasoning_s: float) -> None:
    match event:
        case Chunk():
            history.stream(message, event.text, event.reasoning)
        case Finished():
            is_cancelled = event.reasons[0] is FinishReason.CANCELLED
            state = State.CANCELLED if is_cancelled else State.COMPLETE
            history.finish(message, state, _answered(model, ask, event, reasoning_s))
        case Failed():
            history.finish(message, State.FAILED, None, event.message)


def _answered(model: "Model", ask: Ask, event: Finished, reasoning_s: float) -> Answered:
    return Answered(
        model=model.name,
        digest=model.digest,
        settings=ask.sampling,
        finish_reason=event.reasons[0],
        usage=event.usage,
        timings=event.timings,
        cache=event.cache,
        seed=event.seed,
        reasoning_s=reasoning_s,
        speculation=event.speculation,
    )
