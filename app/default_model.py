"""Which model is used where none is named."""

from pinyon.app.settings import Settings
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
        starter = "`pinyon pull smollm2` fetches a small one (98 MB)"
        raise ModelNotFoundError(f"no model is here yet: {starter}, `pinyon add FILE` takes a GGUF file of yours")
    return max(records, key=lambda record: record.added_at).name
