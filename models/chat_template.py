"""From messages to the prompt that the model's own chat template makes of them, in which no message can forge a turn.

The prompt must be tokenised whole, control tokens parsed, because cutting it anywhere else would change its tokens. So only the
control-token strings *inside message text* are kept apart: before rendering each is replaced by a private-use character, and
the rendered text is split there. A conversation without such strings is one piece.

A template can also form a control string out of texts that hold none: it deletes what stood between two halves, or writes one
half itself. `_Screen.stand_in` says how that is found; such a prompt is refused.

No other template is ever used instead of the model's own. When that one refuses the messages, `_attempts` says what is tried.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from os.path import commonprefix
from typing import Literal

import msgspec

from pinyon.models.errors import TemplateMissingError, TemplateRejectedError
from pinyon.models.template_messages import RenderRequest
from pinyon.models.template_sandbox import TemplateSandbox

Role = Literal["system", "user", "assistant", "tool"]

_NEVER = "(?!)"
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str


@dataclass(frozen=True)
class Piece:
    """A run of the prompt. In a special piece control-token strings are tokens; otherwise they are the text that they look like."""

    text: str
    special: bool


@dataclass(frozen=True)
class ChatTemplate:
    """A model's template as its file gives it: `source` is None for a model without one, an unknown token is ""."""

    source: str | None
    bos_token: str
    eos_token: str

    async def render(
        self,
        sandbox: TemplateSandbox,
        messages: Sequence[Message],
        control_strings: Collection[str],
        tag_strings: Collection[str],
        *,
        add_generation_prompt: bool = True,
    ) -> tuple[Piece, ...]:
        """The prompt in order; only the special pieces may hold control tokens, and those are the template's own.

        `control_strings` (control and unknown tokens of the vocabulary) are plain text in every message, `tag_strings` (other
        tokens that look like tags) in every message but the assistant's, whose tags templates look for.
        Raises TemplateMissingError, TemplateRejectedError (with the template's own sentence, for half a surrogate pair, or
        because texts and template would form a control string), TemplateTooExpensiveError.
        """
        _require_unicode(messages)
        screen = _Screen((*self._own_texts(), *(m.content for m in messages)), control_strings, tag_strings)
        safe = [screen.set_aside(message) for message in messages]
        accepted, text = await self._first_accepted(sandbox, safe, add_generation_prompt)
        harmless = [screen.stand_in(message) for message in accepted]
        if harmless != accepted:
            expected = await self._text(sandbox, harmless, add_generation_prompt)
            screen.require_same_tokens(text, expected)
        return screen.pieces(text)

    async def turn_end(self, sandbox: TemplateSandbox) -> str | None:
        """The tag that the template writes after an assistant's answer, such as `<|im_end|>`.

        None when it writes no tag there or refuses the probe, one question and its answer.
        Raises TemplateMissingError, TemplateTooExpensiveError.
        """
        answer = next(_unused_characters(self._own_texts()))
        try:
            text = await self._text(sandbox, [Message("user", "?"), Message("assistant", answer)], False)
        except TemplateRejectedError:
            return None
        _, found, rest = text.rpartition(answer)
        tag = _TAG.match(rest.lstrip()) if found else None
        return tag[0] if tag else None

    def _own_texts(self) -> tuple[str, ...]:
        if self.source is None:
            raise TemplateMissingError(
                "this model has no chat template (a base model?): use --no-template to send the text as it is"
            )
        return (self.source, self.bos_token, self.eos_token)

    async def _first_accepted(
        self, sandbox: TemplateSandbox, messages: Sequence[Message], add_generation_prompt: bool
    ) -> tuple[list[Message], str]:
        refusal = TemplateRejectedError("there are no messages to render: send at least one")
        for attempt in _attempts(messages):
            try:
                return attempt, await self._text(sandbox, attempt, add_generation_prompt)
            except TemplateRejectedError as error:
                refusal = error
        raise refusal

    async def _text(self, sandbox: TemplateSandbox, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        source, bos_token, eos_token = self._own_texts()
        variables = {
            "messages": msgspec.to_builtins(messages),
            "tools": None,  # templates ask whether these two are none, which an undefined name is not
            "documents": None,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": add_generation_prompt,
        }
        return await sandbox.render(RenderRequest(source, variables))


class _Screen:
    """Keeps the control strings of one conversation's texts out of the template's hands."""

    def __init__(self, texts: Sequence[str], control_strings: Collection[str], tag_strings: Collection[str]) -> None:
        self._controls = frozenset(filter(None, control_strings))
        self._tags = frozenset(filter(None, tag_strings)) - self._controls
        self._tokens = self._controls | self._tags
        self._insides = "\n".join(self._tokens)
        unused = _unused_characters((*texts, *self._tokens))
        self._placeholders: defaultdict[str, str] = defaultdict(unused.__next__)
        self._doubles: defaultdict[str, str] = defaultdict(unused.__next__)
        # White space is no edge, since templates trim it.
        self._edges = frozenset(edge for token in self._tokens for edge in token.strip()[:1] + token.strip()[-1:])

    def set_aside(self, message: Message) -> Message:
        """The message with a placeholder for each string that would be a token; the longest at a position wins."""
        tokens = self._controls if message.role == "assistant" else self._tokens
        return Message(
            message.role, re.sub(_any_of(tokens), lambda found: self._placeholders[found[0]], message.content)
        )

    def stand_in(self, message: Message) -> Message:
        """A message of the same shape that cannot be part of a token.

        Every character with which a token begins or ends becomes a private-use double. So does a whole text which could be the
        inside of a token, in case the template writes `<|` and `|>` around it. Words stay, since templates look for some, and
        so do an assistant's tags. What a template makes by decoding, `<` out of `&lt;` say, counts as the template's own.
        """
        bare = message.content.strip()
        if bare and bare not in self._tags and bare in self._insides:
            return Message(message.role, message.content.replace(bare, self._doubles[bare]))
        kept_or_edge = f"({_any_of(self._tags)})|{_any_of(self._edges)}"
        text = re.sub(kept_or_edge, lambda found: found[1] or self._doubles[found[0]], message.content)
        return Message(message.role, text)

    def require_same_tokens(self, text: str, expected: str) -> None:
        """Raises TemplateRejectedError unless both hold the same tokens in the same order, overlapping ones included."""
        token = f"(?=({_any_of(self._tokens)}))"
        found, own = re.findall(token, text), re.findall(token, expected)
        if found != own:
            raise TemplateRejectedError(
                "the messages and the chat template together form control tokens that are not the template's own "
                f"({len(found)} tokens instead of {len(own)}): change the text that holds a part of one, such as '<|'"
            )

    def pieces(self, text: str) -> tuple[Piece, ...]:
        strings = {placeholder: string for string, placeholder in self._placeholders.items()}
        parts = re.split(f"({_any_of(frozenset(strings))})", text)
        return tuple(Piece(strings.get(part, part), special=part not in strings) for part in parts if part)


def _attempts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What is rendered, until the template accepts: the messages as they are, then with neighbours of one role merged (some
    templates insist that roles alternate), then with the system text at the head of the user turn that follows it (some have no
    system turn).
    """
    tried: list[list[Message]] = []
    users = [Message("user", m.content) if m.role == "system" else m for m in messages]
    for attempt in (list(messages), _merged(messages), _merged(users)):
        if attempt and attempt not in tried:
            tried.append(attempt)
            yield attempt


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role as one message, a blank line between their texts; each tool result stays by itself."""
    merged: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        run = list(group)
        merged += run if role == "tool" else [Message(role, "\n\n".join(message.content for message in run))]
    return merged


def _require_unicode(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages, 1):
        try:
            message.content.encode()
        except UnicodeEncodeError as error:
            raise TemplateRejectedError(
                f"message {number} ({message.role}) is not valid Unicode: character {error.start + 1} is half of a surrogate "
                "pair. Remove it or send the whole pair"
            ) from error


def _unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """The private-use characters of planes 15 and 16 that occur in none of the texts.

    Raises TemplateRejectedError at the end of the 131,068 there are.
    """
    used = {character for text in texts for character in re.findall("[\U000f0000-\U0010ffff]", text)}
    for code_point in chain(range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)):
        if chr(code_point) not in used:
            yield chr(code_point)
    raise TemplateRejectedError("the messages use every private-use character of Unicode: remove some of them")


@lru_cache(maxsize=32)
def _any_of(strings: frozenset[str]) -> str:
    """A regular expression for the longest of the strings at a position."""
    return _trie(sorted(strings)) if strings else _NEVER


def _trie(strings: Sequence[str]) -> str:
    """The strings (sorted, distinct) as a tree of common prefixes: with an alternative for each of a vocabulary's thousand
    control tokens, a text full of `<` would take a thousand times as long.
    """
    branches = []
    for _, group in groupby(filter(None, strings), key=lambda string: string[0]):
        members = list(group)
        prefix = commonprefix(members)  # noqa: RUF071  # these are no paths: character by character is right
        branches.append(re.escape(prefix) + _trie([member[len(prefix) :] for member in members]))
    if not branches:
        return ""
    may_end_here = "?" if "" in strings else ""
    return f"(?:{'|'.join(branches)}){may_end_here}"
