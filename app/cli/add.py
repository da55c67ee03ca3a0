"""`pinyon add`: register a GGUF file where it lies."""

from pathlib import Path

import click

from pinyon.app.settings import Folders
from pinyon.models.store import Store


@click.command(name="add")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Name for the model (default: made from the file's name).")
def command(file: Path, name: str | None) -> None:
    """Make a GGUF file of yours usable by name. Nothing is copied."""
    print(Store(Folders.of_user().models).add(file, name).name)
