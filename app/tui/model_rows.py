"""What there is to know about every model that is here or could be fetched, and fetching one. Reads disks: for threads."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pinyon.app.fit import sizes_here
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.history import History
from pinyon.app.known_sizes import known_model
from pinyon.app.tui.figures import Figures
from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.catalog_headers import catalog_header
from pinyon.models.errors import ModelError, ModelNotFoundError
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.memory.sizes import ModelSizes
from pinyon.models.model_record import Record
from pinyon.models.store import Store
from pinyon.models.wheel_source import Progress, fetch


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model to choose. None and empty are not known.

    `tokens_per_s` is what it did on this machine. `note` is for the user: what it is for, or what is wrong with it. `headers`
    and `sizes` are kept so that it can be judged again and again without reading anything.
    """

    name: str
    is_here: bool
    size_bytes: int
    quantization: str = ""
    tokens_per_s: float | None = None
    note: str = ""
    headers: tuple[GgufHeader, ...] = field(default=(), compare=False, repr=False)
    sizes: ModelSizes | None = field(default=None, compare=False, repr=False)


def model_rows(store: Store, history: History, known: Path) -> Iterator[ModelRow]:
    """Yield the models that are here by name, then those of the catalogue that are not, smallest first, as each is read; what was read once
    is in the folder `known`.

    Raises StoreError where the models folder cannot be read.
    """
    listing = store.list()
    taken = {record.name for record in listing.broken}
    for record in listing.records:
        taken.add(record.name)
        yield _row_of(record, store, known, _speed(history, record.name))
    for broken in listing.broken:
        yield ModelRow(broken.name, is_here=True, size_bytes=0, note=broken.reason)
    for entry in sorted(catalog.CATALOG, key=lambda entry: entry.size_bytes):
        if entry.name not in taken and entry.slug not in taken:
            yield _row_of_entry(entry, _speed(history, entry.name))


def pull(store: Store, name: str, on_progress: Callable[[float], None], cancelled: Callable[[], bool]) -> None:
    """Fetch a model of the catalogue, verified, and record it; `on_progress` is told the fraction.

    Raises:
        ModelError: it could not be fetched, or `cancelled` became true; the next pull goes on after the last finished part.
    """
    entry = catalog.find(name)
    if entry is None:
        raise ModelNotFoundError(f"there is no model {name!r} to pull")
    store.require_free_for(entry)

    def tell(progress: Progress) -> None:
        on_progress(progress.bytes_done / progress.bytes_total)

    store.adopt(entry, fetch(entry, store.models_dir, tell, cancelled))


def _speed(history: History, model: str) -> float | None:
    """Return the tokens per second that a model's last answers had here, their median."""
    try:
        answers = history.answers(model)
    except HistoryFileError:
        return None
    rates = [Figures.of(answer.usage, answer.timings, answer.cache).tokens_per_s for answer in answers]
    return statistics.median([rate for rate in rates if rate is not None] or [0.0]) or None


def _row_of(record: Record, store: Store, known: Path, tokens_per_s: float | None) -> ModelRow:
    try:
        record = store.ensure_runnable(record)
        found = known_model(record, known)
    except ModelError as error:
        return ModelRow(record.name, True, record.size_bytes, tokens_per_s=tokens_per_s, note=str(error))
    entry = catalog.find(record.name)
    is_entry = entry is not None and record.sha256 == entry.sha256
    if not found.can_chat:
        note = "has no chat template: it continues text, and cannot chat"
    else:
        note = entry.note if entry is not None and is_entry else found.headers[0].name or ""
    return ModelRow(
        record.name,
        is_here=True,
        size_bytes=record.size_bytes,
        quantization=entry.quantization if entry is not None and is_entry else _quantization(found.headers),
        tokens_per_s=tokens_per_s,
        note=note,
        headers=found.headers,
        sizes=found.sizes,
    )


def _row_of_entry(entry: CatalogEntry, tokens_per_s: float | None) -> ModelRow:
    note = f"{entry.title}, {entry.license}: {entry.note}"
    headers = (catalog_header(entry),)
    return ModelRow(
        entry.name,
        is_here=False,
        size_bytes=entry.size_bytes,
        quantization=entry.quantization,
        tokens_per_s=tokens_per_s,
        note=note,
        headers=headers,
        sizes=sizes_here(headers),
    )


def _quantization(headers: tuple[GgufHeader, ...]) -> str:
    """Return the type that most of the weights' bytes have."""
    sizes: Counter[str] = Counter()
    for tensor in (tensor for header in headers for tensor in header.tensors):
        sizes[tensor.type.name] += tensor.size_bytes
    return max(sizes, key=lambda name: sizes[name], default="")
