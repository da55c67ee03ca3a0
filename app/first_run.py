"""What is offered where no model is here yet: the catalogue by size, and what its smallest model is good for."""

import textwrap
from typing import Final

from pinyon.app.running import read_server
from pinyon.app.settings import Folders, Settings
from pinyon.models import catalog
from pinyon.models.store import Store

STARTER: Final = "smollm2"
TERMINAL_CELLS: Final = 79
_ABOUT_STARTER: Final = f"""\
{STARTER} is tiny: it is here in a minute and quick on any machine. It can chat,
rephrase and shorten a short text, and fill in JSON that a schema holds it to.
It knows little and makes things up, and it cannot reckon, reason or program:
take it to try Pinyon out, and a larger one to work with."""


def is_first_run(folders: Folders, settings: Settings) -> bool:
    """Whether there is nothing that could answer: no model in the settings, none on this machine, no server."""
    if settings.model is not None or read_server(folders) is not None:
        return False
    listing = Store(folders.models).list()
    return not listing.records and not listing.broken


def offer() -> str:
    """Return what can be fetched, smallest first, and how; for a terminal."""
    entries = sorted(catalog.CATALOG, key=lambda entry: entry.size_bytes)
    width = max(len(entry.name) for entry in entries)
    heads = [f"  {entry.name:<{width}}  {entry.size_bytes / 1e6:>7,.0f} MB  " for entry in entries]
    lines = [
        textwrap.fill(head + entry.note, TERMINAL_CELLS, subsequent_indent=" " * len(head))
        for head, entry in zip(heads, entries, strict=True)
    ]
    return "\n".join(
        [
            "No model is here yet. These can be fetched; each is checked byte for byte:",
            "",
            *lines,
            "",
            _ABOUT_STARTER,
            f"`pinyon pull {STARTER}` fetches it; `pinyon add FILE` takes a GGUF file of yours.",
        ]
    )
