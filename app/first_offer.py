"""What is offered where no model is here yet: up to three of the catalogue that fit this machine, and how to see all."""

import textwrap
from collections.abc import Sequence
from typing import Final

from pinyon.app.fit import sizes_here
from pinyon.app.verdict import Here, Verdict, verdict
from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.catalog_headers import catalog_header
from pinyon.models.memory.fit import Wish

STARTER: Final = "smollm2"
TERMINAL_CELLS: Final = 79
_INDENT: Final = " " * 6
_ABOUT_STARTER: Final = f"""\
{STARTER} is tiny: it is here in a minute and quick on any machine. It can chat,
rephrase and shorten a short text, and fill in JSON that a schema holds it to.
It knows little and makes things up, and it cannot reckon, reason or program:
take it to try Pinyon out, and a larger one to work with."""
_HOW_ELSE: Final = """\
`pinyon list` shows all that can be fetched, `pinyon search WORDS` looks on the
hub, and `pinyon add FILE` takes a GGUF file of yours."""
_WORDS: Final = ("small and instant", "balanced", "best that fits")


def suggestions(verdicts: Sequence[Verdict]) -> list[tuple[str, Verdict]]:
    """Return up to three models that fit, each with a word: the quickest, one between, the one of the most weights."""
    fitting = sorted((each for each in verdicts if each.fits), key=_slowness)
    if not fitting:
        return []
    quickest, best = fitting[0], max(fitting, key=_weights)
    between = [each for each in fitting if each not in (quickest, best)]
    chosen = [(_WORDS[0], quickest)]
    if between:
        chosen.append((_WORDS[1], between[len(between) // 2]))
    if best is not quickest:
        chosen.append((_WORDS[2], best))
    return chosen


def offer(here: Here) -> str:
    """Return what of the catalogue suits this machine, and how to get it; for a terminal. What cannot chat is left out."""
    entries = [entry for entry in catalog.CATALOG if entry.chats]
    verdicts = [_judged(entry, here) for entry in entries]
    suggested = suggestions(verdicts)
    if not suggested:
        smallest = min(verdicts, key=lambda each: each.size_bytes)
        lacking = f"{smallest.name}, the smallest that can be fetched, {smallest.remedy}."
        return "\n".join(["No model is here yet, and none fits into memory now:", *_wrapped(lacking), "", _HOW_ELSE])
    width = max(len(each.name) for _, each in suggested)
    notes = {entry.name: entry.note for entry in entries}
    lines = []
    for word, each in suggested:
        lines += [
            f"  {each.name:<{width}}  {each.size_bytes / 1e6:>7,.0f} MB  {word}",
            *_wrapped(f"{notes[each.name]}; {_figures(each)}"),
        ]
    about = [_ABOUT_STARTER] if any(each.name == STARTER for _, each in suggested) else []
    return "\n".join(
        [
            "No model is here yet. These fit this machine; each is checked byte for byte:",
            "",
            *lines,
            "",
            *about,
            f"`pinyon pull {suggested[0][1].name}` fetches the first.",
            _HOW_ELSE,
        ]
    )


def _judged(entry: CatalogEntry, here: Here) -> Verdict:
    headers = (catalog_header(entry),)
    return verdict(entry.name, headers, sizes_here(headers), here, Wish())


def _figures(found: Verdict) -> str:
    speed = "" if found.speed is None else f", about {found.speed.decode_tokens_per_s:.0f} tok/s"
    return f"{found.context_tokens:,} tokens of context{speed}"


def _slowness(found: Verdict) -> float:
    """Seconds a token where speeds are known, else bytes: what is read for each token."""
    return found.size_bytes if found.speed is None else 1 / found.speed.decode_tokens_per_s


def _weights(found: Verdict) -> float:
    return 8 * found.size_bytes / found.bits_per_weight


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, TERMINAL_CELLS, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
