"""`pinyon rm`: forget a model, and delete its files if Pinyon fetched them."""

import asyncio
import sys
from pathlib import Path

import click

from pinyon.app.cli import completion
from pinyon.app.model_users import other_users, require_unloaded
from pinyon.app.settings import Folders
from pinyon.models.disk import printable
from pinyon.models.errors import StoreError
from pinyon.models.model_record import Record
from pinyon.models.store import Store


@click.command(name="rm")
@click.argument("name", shell_complete=completion.models_here)
def command(name: str) -> None:
    """Remove a model. A file that was added stays where it is; one that was pulled is deleted."""
    folders = Folders.of_user()
    store = Store(folders.models)
    record = _readable(store, name)
    users: tuple[str, ...] = ()
    if record is not None:
        asyncio.run(require_unloaded(folders, record))
        users = other_users(store, record)
    removal = store.remove(name)
    print(f"{removal.name} is removed: {_what_became(removal.deleted, users)}", file=sys.stderr)


def _readable(store: Store, name: str) -> Record | None:
    """The record; None where there is none that can be read, which remove will tell."""
    try:
        return store.find(name)
    except StoreError:
        return None


def _what_became(deleted: tuple[Path, ...], users: tuple[str, ...]) -> str:
    if deleted:
        return f"deleted {', '.join(map(printable, deleted))}"
    if users:
        return f"its file stays, for {' and '.join(users)}"
    return "its file was not Pinyon's and stays"
