"""Whether there is nothing yet that could answer."""

from pinyon.app.running import read_server
from pinyon.app.settings import Folders, Settings
from pinyon.models.store import Store


def is_first_run(folders: Folders, settings: Settings) -> bool:
    """Whether there is nothing that could answer: no model in the settings, none on this machine, no server."""
    if settings.model is not None or read_server(folders) is not None:
        return False
    listing = Store(folders.models).list()
    return not listing.records and not listing.broken
