"""What the chat tells in words when it is asked: the cache, the context, the sampling, and a question as a shell command."""

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pinyon.app.conversing import Choices, EditCost, as_chat
from pinyon.app.counted import counted
from pinyon.app.history.records import Message, Role
from pinyon.app.tui import amounts
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.figures import Figures, cached
from pinyon.engine.events import FinishReason

if TYPE_CHECKING:
    from pinyon.app.service import Model


def last_answered(path: Sequence[Message]) -> Message | None:
    """Return the last answer on a path that the engine told figures about."""
    return next((message for message in reversed(path) if message.answered is not None), None)


def figures_of(message: Message) -> Figures | None:
    """Return the figures of an answer; None where it has none."""
    answered = message.answered
    return (
        None if answered is None else Figures.of(answered.usage, answered.timings, answered.cache, answered.speculation)
    )


def is_at_limit(message: Message) -> bool:
    """Whether an answer ended because it reached `max_tokens` or the end of the context."""
    return message.answered is not None and message.answered.finish_reason is FinishReason.LENGTH


def cut_off(message: Message, goes_on: str) -> str:
    """Return that an answer ran into its limit, and that `goes_on`, a key or a command, does so; empty where it did not."""
    if message.answered is None or not is_at_limit(message):
        return ""
    cut = f"cut off at {counted(message.answered.usage.completion_tokens, 'token')}"
    return f"{cut}; {goes_on} goes on" if message.text else cut


def cache_report(path: Sequence[Message]) -> str:
    """Return what of the last prompt was reused, from where, and why not more."""
    answer = last_answered(path)
    if answer is None or (answered := answer.answered) is None:
        return "No answer here has figures yet."
    cache = answered.cache
    lines = [f"reused: {cached(Figures.of(answered.usage, answered.timings, cache))} tokens of the last prompt"]
    if cache.miss is None:
        return lines[0] + "\nAll that could be reused was."
    lines.append(f"not more: {cache.miss.value}, from token {cache.position:,}")
    for name, text in (("known there", cache.expected), ("came there", cache.got), ("advice", cache.advice)):
        if text:
            lines.append(f"{name}: {text!r}" if name != "advice" else f"{name}: {text}")
    return "\n".join(lines)


def context_report(taken: int, model: "Model") -> str:
    """Return how much of a model's context a conversation takes."""
    left = max(0, model.context_tokens - taken)
    return f"{taken:,} of {model.context_tokens:,} tokens used, {left:,} left ({model.name}, KV in {model.kv_type})"


def params_report(choices: Choices) -> str:
    """Return how tokens are drawn: what was chosen, all else as the model's file recommends."""
    chosen = {name: value for name, value in msgspec.structs.asdict(choices.sampling).items() if value is not None}
    if choices.max_tokens is not None:
        chosen["max_tokens"] = choices.max_tokens
    told = (
        "\n".join(f"{name}={value}" for name, value in chosen.items()) or "nothing: all as the model's file recommends"
    )
    return (
        f"chosen: {told}\n\n`/params temperature=0.5 seed=7` chooses, `/params clear` gives all of it back to the model"
    )


def edit_cost(cost: EditCost) -> str:
    """Return in a line what an edit costs."""
    lost = counted(cost.lost_tokens, "token")
    rest = counted(cost.prompt_tokens - cost.cached_tokens, "token")
    return f"makes {lost} of the cache useless, computes {rest} again ({amounts.seconds(cost.compute_s)})"


def as_curl(path: Sequence[Message], choices: Choices, model: str, url: str) -> str:
    """Return the curl command that asks a server what the last answer on the path was asked. Quoted for a POSIX shell."""
    asked = as_chat(_asked(path))
    body: dict[str, object] = {"model": model, "messages": msgspec.to_builtins(asked.messages), **_sampling(choices)}
    if choices.max_tokens is not None:
        body["max_tokens"] = choices.max_tokens
    data = json.dumps(body, ensure_ascii=False)
    return (
        f"curl {shlex.quote(url + '/v1/chat/completions')} -H 'Content-Type: application/json' -d {shlex.quote(data)}"
    )


def as_command(path: Sequence[Message], choices: Choices, model: str) -> str:
    """Return the `pinyon run` command of the last question on the path; messages before it are not part of it."""
    asked = _asked(path)
    system = [message.text for message in asked if message.role is Role.SYSTEM][-1:]
    questions = [message.text for message in asked if message.role is Role.USER]
    words = ["pinyon", "run", "-m", model]
    words += [f"--system={system[0]}"] if system and system[0] else []
    words += [f"--{name.replace('_', '-')}={value}" for name, value in _sampling(choices).items()]
    words += [] if choices.max_tokens is None else [f"--max-tokens={choices.max_tokens}"]
    command = shlex.join([*words, "--", questions[-1] if questions else ""])
    before = len(questions) - 1
    return command if before <= 0 else f"# without the {counted(before, 'earlier question')}; /curl has them\n{command}"


def _asked(path: Sequence[Message]) -> Sequence[Message]:
    """Return the path up to its last question."""
    last = max((place for place, message in enumerate(path) if message.role is Role.USER), default=-1)
    return path[: last + 1]


def _sampling(choices: Choices) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(choices.sampling).items() if value is not None}


def title(dialogue: Dialogue) -> str:
    """Return the line above the messages: the conversation, its model, and what is not kept."""
    conversation, model = dialogue.conversation, dialogue.model
    parts = (
        "new conversation" if conversation is None else conversation.title,
        "no model" if model is None else model.name,
        "private" if dialogue.choices.private else "",
        dialogue.history.why_not_saved,
    )
    return " · ".join(filter(None, parts))


def status(dialogue: Dialogue) -> list[str]:
    """Return the lines above the prompt: what loads, how far a long prompt is, and what waits."""
    lines = []
    if dialogue.loaded is not None:
        lines.append(f"loading {dialogue.wanted or 'the model'}: {dialogue.loaded:.0%}")
    if (prefill := dialogue.prefill) is not None and 0 < prefill.done < prefill.total:
        lines.append(f"prefill: {prefill.done:,} of {prefill.total:,} tokens")
    if waiting := dialogue.waiting:
        lines.append(f"waiting ({len(waiting)}): {waiting[0]}")
    return lines
