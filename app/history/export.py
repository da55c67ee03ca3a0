"""A path through a conversation as a document: Markdown, JSON Lines with OpenAI's messages, or one HTML file.

What a document says about an answer is what its `Answered` says. Thoughts are left out unless asked for.
"""

import datetime as dt
import html as markup
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pinyon.app.control_codes import OBEYED
from pinyon.app.counted import counted
from pinyon.app.history.records import Answered, Conversation, Message, Role, State
from pinyon.app.history.tree import told

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# Neither C0 nor C1 are characters of HTML: they are shown by a sign. What turns text round stays within its element.
_CONTROLS: Final = {code: "\ufffd" for code in OBEYED if code < 0xA0}
_STYLE: Final = """
:root { color-scheme: light dark }
body { max-width: 48rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }
article { margin: 1.5rem 0; padding: .75rem 1rem; border: 1px solid #8886; border-radius: .5rem }
article.user { background: #8882 }
h2 { margin: 0 0 .5rem; font-size: .9rem }
pre { margin: 0; font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate }
details, footer, p { font-size: .85rem; opacity: .75 }
"""


def markdown(conversation: Conversation, path: Sequence[Message], *, reasoning: bool = False) -> str:
    """Return the path as Markdown. A code fence that a message leaves open is closed, so that it swallows nothing."""
    parts = [f"# {_one_line(conversation.title) or 'Conversation'}"]
    for message in path:
        parts.append(f"## {_heading(message)}")
        for title, text in _attached(message):
            parts += [f"- attached: {title}", text]
        if reasoning and message.reasoning:
            parts.append("\n".join(f"> {line}" for line in message.reasoning.splitlines()))
        parts.append(_with_closed_fences(message.typed))
        parts += [f"*{_one_line(line)}*" for line in _remarks(message)]
    return "\n\n".join(part for part in parts if part) + "\n"


def jsonl(conversation: Conversation, path: Sequence[Message], *, reasoning: bool = False) -> str:  # noqa: ARG001
    """Return the path as one line of JSON: {"messages": [{"role", "content"}, ...]}, thoughts as `reasoning_content`.

    They are those that a model is shown: the last instructions, in front, and no answer without text.
    """
    messages = []
    for message in told(path):
        entry = {"role": message.role.value, "content": message.text}
        if reasoning and message.reasoning:
            entry["reasoning_content"] = message.reasoning
        messages.append(entry)
    return msgspec.json.encode({"messages": messages}).decode() + "\n"


def html(conversation: Conversation, path: Sequence[Message], *, reasoning: bool = False) -> str:
    """Return the path as an HTML document that needs nothing else, runs nothing, and shows all text literally."""
    title = _escaped(_one_line(conversation.title) or "Conversation")
    articles = "\n".join(_article(message, reasoning=reasoning) for message in path)
    return f"""<!DOCTYPE html>
<html lang="">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1 dir="auto">{title}</h1>
{articles}
</body>
</html>
"""


def _article(message: Message, *, reasoning: bool) -> str:
    lines = [f'<article class="{message.role}">', f"<h2>{_escaped(_heading(message))}</h2>"]
    for title, text in _attached(message):
        about = f"attached: {title}"
        lines.append(_folded(about, text) if text else f"<p>{_escaped(about)}</p>")
    if reasoning and message.reasoning:
        lines.append(_folded("Thoughts", message.reasoning))
    lines.append(f'<pre dir="auto">{_escaped(message.typed)}</pre>')
    if remarks := _remarks(message):
        lines.append(f"<footer>{'<br>'.join(map(_escaped, remarks))}</footer>")
    return "\n".join((*lines, "</article>"))


def _folded(about: str, text: str) -> str:
    return f'<details><summary>{_escaped(about)}</summary><pre dir="auto">{_escaped(text)}</pre></details>'


def _escaped(text: str) -> str:
    return markup.escape(text.translate(_CONTROLS))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _heading(message: Message) -> str:
    who = message.role.capitalize()
    if message.role is Role.ASSISTANT and message.answered is not None:
        who = f"{who} ({_one_line(message.answered.model)})"
    return f"{who}, {dt.datetime.fromtimestamp(message.created_at).astimezone():%Y-%m-%d %H:%M:%S %z}"


def _attached(message: Message) -> Iterator[tuple[str, str]]:
    """Yield what is attached: about it, and its text as far as that is known apart from the message's."""
    for each, text in zip(message.attached, message.attached_texts, strict=True):
        tokens = f", {counted(each.tokens, 'token')}" if each.tokens else ""
        yield f"{_one_line(each.name)} ({counted(each.size_bytes, 'byte')}{tokens})", text


def _remarks(message: Message) -> list[str]:
    """Return what is to be said below a message, a line each."""
    remarks = [] if message.state is State.COMPLETE else [f"{message.state}{message.error and f': {message.error}'}"]
    return remarks if message.answered is None else [*remarks, *_figures(message.answered)]


def _figures(answered: Answered) -> Iterator[str]:
    usage, timings = answered.usage, answered.timings
    yield (
        f"ended by {answered.finish_reason}: {usage.prompt_tokens:,} prompt tokens ({answered.cache.cached:,} of them cached), "
        f"{usage.completion_tokens:,} tokens; waited {timings.queue_s:.2f} s, prefill {timings.prefill_s:.2f} s, "
        f"decode {timings.decode_s:.2f} s"
    )
    chosen = {**msgspec.to_builtins(answered.settings), "seed": answered.seed}  # without what was left to the model
    yield (
        ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None)
        or "the model's own settings"
    )
    if answered.digest:
        yield f"model SHA-256 {answered.digest}"


def _with_closed_fences(text: str) -> str:
    """Return the text, its last code fence closed if it is open (CommonMark 0.31, section 4.5)."""
    fence = ""
    for line in text.splitlines():
        if (match := _FENCE.fullmatch(line)) is None:
            continue
        marks, rest = match[1], match[2].strip()
        if not fence:
            fence = "" if marks[0] == "`" and "`" in rest else marks
        elif marks.startswith(fence) and not rest:
            fence = ""
    return f"{text}\n{fence}" if fence else text
