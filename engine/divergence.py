"""Why a prompt and a known text part, and what the prompt's author could do about it. Nothing is told that is not seen in them."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from pinyon.engine.cache_report import SHOWN_TOKENS, Gap, Miss
from pinyon.engine.request import Reasoning
from pinyon.engine.vocab import Vocab

_EARLY: Final = 0.5
"""The part of a prompt in which a difference costs most of the cache."""
_HEADING_TOKENS: Final = 64
"""In how many of a prompt's last tokens the heading of the answer is looked for."""
_PART_TOKENS: Final = 32
"""How long a part of a list may be, to be noticed at another place."""
_AROUND: Final = " \t[]{}"
"""What stands around the parts of a list."""

_RESPELLED: Final = (
    "the text is the same, but it comes as other tokens: "
    "send an answer back whole and unchanged, as a message of its own"
)
_OTHER_ANSWER: Final = (
    "the history has another answer there than the known one: the chat template or the client has changed it, "
    "or it was given elsewhere; send answers back as they came, with their reasoning_content"
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
    if _is_respelled(gap, vocab):
        return Explanation(Miss.RETOKENISED, _RESPELLED)
    known, now = (vocab.shown(tokens[:SHOWN_TOKENS]) for tokens in (gap.expected, gap.got))
    if _is_in_answer(prompt, gap, vocab):
        lost_thoughts = reasoning is not None and _starts(known, reasoning) and not _starts(now, reasoning)
        return Explanation(Miss.HISTORY_CHANGED, _NO_THOUGHTS if lost_thoughts else _OTHER_ANSWER)
    if _is_reordered(prompt, gap, vocab):
        return Explanation(Miss.DIVERGED, _ORDER)
    if gap.position > _EARLY * len(prompt):
        return Explanation(Miss.DIVERGED, "")
    return Explanation(Miss.DIVERGED, _NUMBER if re.search(r"\d", known) and re.search(r"\d", now) else _START)


def _is_respelled(gap: Gap, vocab: Vocab) -> bool:
    """Whether both go on with the same text in other tokens: cut at different places, and then at the same one again.

    Before a place where both are cut, what a tokenizer makes of a text does not depend on what comes after it. So this is
    no text that only begins alike.
    """
    known, now = _pieces(gap.expected, vocab), _pieces(gap.got, vocab)
    one, other = next(known, b""), next(now, b"")
    while one and other and one != other and (one.startswith(other) or other.startswith(one)):
        more = next(known if len(one) < len(other) else now, None)
        if more is None:
            return False
        one, other = (one + more, other) if len(one) < len(other) else (one, other + more)
    return bool(one) and one == other


def _pieces(tokens: Sequence[int], vocab: Vocab) -> Iterator[bytes]:
    """Yield the texts of the tokens before the first control token."""
    return takewhile(bool, map(vocab.token_bytes, tokens))


def _is_in_answer(prompt: Sequence[int], gap: Gap, vocab: Vocab) -> bool:
    """Whether the known text goes on in a message that began as the one that the prompt asks for: in an answer."""
    end = len(prompt)
    heading = tuple(prompt[_last_controls(prompt, max(0, end - _HEADING_TOKENS), end, vocab) :])
    if not heading:
        return False
    start = _last_controls(prompt, 0, gap.position, vocab)
    return (*prompt[start : gap.position], *gap.expected)[: len(heading)] == heading


def _last_controls(prompt: Sequence[int], start: int, end: int, vocab: Vocab) -> int:
    """Return where the last two control tokens begin, between which a role's name stands; `end` where there are not two."""
    controls = (index for index in range(end - 1, start - 1, -1) if vocab.is_control(prompt[index]))
    next(controls, None)
    return next(controls, end)


def _starts(text: str, reasoning: Reasoning) -> bool:
    return text.lstrip().startswith(reasoning.start)


def _is_reordered(prompt: Sequence[int], gap: Gap, vocab: Vocab) -> bool:
    """Whether the parts that differ come later in the other text, both of them."""
    begun = _parts(vocab.shown(prompt[max(0, gap.position - _PART_TOKENS) : gap.position]))[-1]
    known, *known_rest = _parts(begun + vocab.shown(gap.expected[:_PART_TOKENS]))
    now, *now_rest = _parts(begun + vocab.shown(gap.got[:_PART_TOKENS]))
    if not (known_rest and now_rest) or known.strip(_AROUND) == now.strip(_AROUND):
        return False
    return _has(gap.expected, now, vocab) and _has(gap.got, known, vocab)


def _has(tokens: Sequence[int], part: str, vocab: Vocab) -> bool:
    """Whether a text has a part, and not as its first one."""
    wanted = part.strip(_AROUND)
    return bool(wanted) and any(each.strip(_AROUND) == wanted for each in _parts(vocab.shown(tokens))[1:])


def _parts(text: str) -> list[str]:
    """Return the lines of a text, cut at commas: what tools, documents and instructions are lists of."""
    return re.split(r"[\n,]", text)
