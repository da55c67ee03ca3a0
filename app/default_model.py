"""Which model is used where none is named."""

from pinyon.app.settings import Settings
from pinyon.models.catalog import CATALOG
from pinyon.models.errors import ModelNotFoundError
from pinyon.models.store import Store


def model_before(store: Store, model: str) -> str | None:
    """Return the model that answered before, to go on with; None where none of that name is here any more."""
    return model if store.knows(model) else None


def default_model(store: Store, settings: Settings) -> str:
    """Return the model of the settings, else the one that came last. Raises ModelNotFoundError where none is here."""
    if settings.model is not None:
        return settings.model
    records = store.list().records
    if not records:
        small = min(CATALOG, key=lambda entry: entry.size_bytes)
        raise ModelNotFoundError(
            f"no model is here yet: `pinyon pull {small.name}` fetches a small one ({small.size_bytes / 1e6:.0f} MB), "
            "`pinyon add FILE` takes a GGUF file of yours"
        )
    return max(records, key=lambda record: record.added_at).name
