"""`pinyon rm`: forget a model, and delete its file if Pinyon fetched it."""

import sys

import click

from pinyon.app.settings import Folders
from pinyon.models.store import Store


@click.command(name="rm")
@click.argument("name")
def command(name: str) -> None:
    """Remove a model. A file that was added stays where it is; one that was pulled is deleted."""
    removal = Store(Folders.of_user().models).remove(name)
    what = "its file was not Pinyon's and stays" if removal.deleted is None else f"deleted {removal.deleted}"
    print(f"{removal.name} is removed: {what}", file=sys.stderr)
