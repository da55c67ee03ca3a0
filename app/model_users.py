"""Who else uses a model's files: other records, other programs, the running server."""

import os

from pinyon.app.errors import UsageError
from pinyon.app.running import read_server
from pinyon.app.settings import Folders
from pinyon.models.adoption import places
from pinyon.models.model_record import Record
from pinyon.models.store import Store


def other_users(store: Store, record: Record) -> tuple[str, ...]:
    """Return the names of models that have a file of this one, and the store of another program that its files lie in."""
    home = places.user_home()
    place = places.place_of(record.path, home, os.environ)
    return (*store.sharers_of(record), *(() if place is None else (place.title,)))


async def require_unloaded(folders: Folders, record: Record) -> None:
    """Raise UsageError while the running server has the model loaded, or is loading it; ServerError where it does not tell."""
    if read_server(folders) is None:
        return
    from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

    server = await find_server(folders)
    if server is None:
        return
    used = next((model for model in (await server.status()).models if model.name == record.name), None)
    if used is not None:
        state = "loaded" if used.progress is None else "being loaded"
        raise UsageError(
            f"{record.name} is {state} in the server with pid {server.pid} at {server.url}: `pinyon stop` first,"
            f" then `pinyon rm {record.name}`"
        )
