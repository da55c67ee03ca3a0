"""The first run: offers a model, and on a terminal fetches the one that the user names."""

import sys

import click

from pinyon.app.first_run import is_first_run
from pinyon.app.settings import Folders, Settings
from pinyon.models import catalog


def offer_a_model(folders: Folders, settings: Settings) -> bool:
    """Where nothing could answer, say what could be fetched that fits, and on a terminal ask. Return whether it was said.

    Nothing is fetched but what the user names. What was fetched is there when this returns. Raises ModelError as a pull does.
    """
    if not is_first_run(folders, settings):
        return False
    from pinyon.app.first_offer import STARTER, offer  # noqa: PLC0415  what judges models is needed only here
    from pinyon.app.verdict import here_now  # noqa: PLC0415

    print(offer(here_now(folders, settings)), file=sys.stderr)
    if sys.stdin.isatty() and sys.stderr.isatty():
        names = [entry.name for entry in sorted(catalog.CATALOG, key=lambda entry: entry.size_bytes)]
        question = f"Fetch one now? Its name, for example {STARTER}, or Enter for none"
        name = click.prompt(
            question, default="", show_default=False, type=click.Choice(["", *names]), show_choices=False, err=True
        )
        if (entry := catalog.find(name)) is not None:
            from pinyon.app.cli.pull import pull  # noqa: PLC0415  only where something is fetched

            pull(entry, folders.models)
    return True
