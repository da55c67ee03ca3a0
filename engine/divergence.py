"""Why a prompt and a known text part, and what the prompt's author could do about it. Nothing is told that is not seen in them."""

import re
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from pinyon.engine.cache_report import SHOWN_TOKENS, Gap, Miss
from pinyon.engine.request import Reasoning
from pinyon.engine.vocab import Vocab

_EARLY: Final = 0.5
"""The part of a prompt in which a difference costs most of the cache."""
_LINE_TOKENS: Final = 64
"""How far back the beginning of a line is looked for."""

_RESPELLED: Final = "the text is the same, but it comes as other tokens: send an answer back whole and unchanged, as a message of its own"
_OTHER_ANSWER: Final = (
    "an answer in the history is not the one that was given: the chat template or the client has changed it; "
    "send answers back as they came, with their reasoning_content"
)
_NO_THOUGHTS: Final = (
    "the model's thoughts are not in the history: the chat template or the client leaves them out, "
    "and what follows them is computed again"
)
_ORDER: Final = "the same parts come in another order: keep tools, instructions and documents in a fixed one"
_NUMBER: Final = "a date, time or number near the start changes with every request: put what changes at the end"
_START: Final = "the start differs from last time: keep instructions, tools and history in the same order and words"


class Explanation(NamedTuple):
    miss: Miss
    advice: str


def explained(prompt: Sequence[int], gap: Gap, vocab: Vocab, reasoning: Reasoning | None) -> Explanation:
    """Say more about a gap where the prompt goes on otherwise than what is known.

    The advice is empty where the difference is late in the prompt and nothing is known to help.
    """
    known, now = vocab.shown(gap.expected), vocab.shown(gap.got)
    if _is_respelled(gap, vocab):
        return Explanation(Miss.RETOKENISED, _RESPELLED)
    if _is_in_answer(prompt, gap, vocab):
        lost_thoughts = reasoning is not None and _starts(known, reasoning) and not _starts(now, reasoning)
        return Explanation(Miss.HISTORY_CHANGED, _NO_THOUGHTS if lost_thoughts else _OTHER_ANSWER)
    line = vocab.shown(prompt[max(0, gap.position - _LINE_TOKENS) : gap.position]).rpartition("\n")[2]
    if _is_reordered(line + known, line + now):
        return Explanation(Miss.DIVERGED, _ORDER)
    if gap.position > _EARLY * len(prompt):
        return Explanation(Miss.DIVERGED, "")
    nearest = (vocab.shown(tokens[:SHOWN_TOKENS]) for tokens in (gap.expected, gap.got))
    return Explanation(Miss.DIVERGED, _NUMBER if all(re.search(r"\d", text) for text in nearest) else _START)


def _is_respelled(gap: Gap, vocab: Vocab) -> bool:
    """Whether both go on with the same text in other tokens: cut at different places, and then at the same one again.

    Before a place where both are cut, what a tokenizer makes of a text does not depend on what comes after it. So this is
    no text that only begins alike.
    """
    known, now = _pieces(gap.expected, vocab), _pieces(gap.got, vocab)
    meet = min({*accumulate(map(len, known))} & {*accumulate(map(len, now))}, default=0)
    return meet > 0 and b"".join(known)[:meet] == b"".join(now)[:meet]


def _pieces(tokens: Sequence[int], vocab: Vocab) -> list[bytes]:
    """Return the texts of the tokens before the first control token."""
    return [*takewhile(bool, map(vocab.token_bytes, tokens))]


def _is_in_answer(prompt: Sequence[int], gap: Gap, vocab: Vocab) -> bool:
    """Whether the known text goes on in a message that began as the one that the prompt asks for: in an answer."""
    heading = prompt[_last_controls(prompt, len(prompt), vocab) :]
    start = _last_controls(prompt, gap.position, vocab)
    known = (*prompt[start : gap.position], *gap.expected)
    return len(heading) > 0 and known[: len(heading)] == tuple(heading)


def _last_controls(prompt: Sequence[int], end: int, vocab: Vocab) -> int:
    """Return where the last two control tokens before `end` begin; there a role's name is told. `end` where there are not two."""
    at = (index for index in range(end - 1, -1, -1) if vocab.is_control(prompt[index]))
    next(at, None)
    return next(at, end)


def _starts(text: str, reasoning: Reasoning) -> bool:
    return text.lstrip().startswith(reasoning.start)


def _is_reordered(known: str, now: str) -> bool:
    """Whether the first parts that differ come later in the other text: lines, or what commas separate."""
    these, those = _parts(known), _parts(now)
    at = next((index for index, (one, other) in enumerate(zip(these, those, strict=False)) if one != other), None)
    return at is not None and these[at] in those[at:] and those[at] in these[at:]


def _parts(text: str) -> list[str]:
    return [part for each in re.split(r"[\n,]", text) if (part := each.strip(" \t[]{}"))]
