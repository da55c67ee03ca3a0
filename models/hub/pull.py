"""From an address on the hub to a model that is here: found in the records, in the hub's cache, or on the hub."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pinyon.models.catalog import MAX_NAME_CHARS, slug
from pinyon.models.disk import printable
from pinyon.models.errors import DownloadError, ModelError, ModelNotFoundError
from pinyon.models.hub import download
from pinyon.models.hub.address import Address
from pinyon.models.hub.cached import cached_repos
from pinyon.models.hub.repo import DEFAULT_QUANT, HubModel, HubRepo, chosen, read_repo
from pinyon.models.model_record import Record
from pinyon.models.store import Store


@dataclass(frozen=True, slots=True)
class Found:
    """The model that an address means. `folder` is the hub's cache where that has it; None is for one that has to be fetched."""

    address: Address
    repo: HubRepo
    model: HubModel
    folder: Path | None

    @property
    def alias(self) -> str:
        return _alias(self.address, self.model.label)

    @property
    def name(self) -> str:
        """The repository's name without `-gguf`, then the quantisation."""
        owner, _, name = self.repo.repo_id.lower().partition("/")
        tag = slug(self.alias.rpartition(":")[2]) or "model"
        if self.address.revision is not None:
            tag = f"{tag}-{slug(self.address.revision)[:12]}"
        return f"{_short(name) or owner}:{tag}"[:MAX_NAME_CHARS].rstrip("-._")

    @property
    def longer_name(self) -> str:
        """The same with the owner, for when another repository's model has that name."""
        return f"{slug(self.repo.repo_id.partition('/')[0])}-{self.name}"[:MAX_NAME_CHARS].rstrip("-._")


def already_here(address: Address, store: Store) -> Record | None:
    """The record that an earlier pull made, with its file as it was checked; nothing is asked and nothing imported for it."""
    alias = _alias(address, address.choice or DEFAULT_QUANT)
    if not store.knows(alias):
        return None
    try:
        return store.ensure_runnable(store.resolve(alias))
    except ModelError:
        return None  # its file is gone or another one: it is fetched again


def find(address: Address) -> Found:
    """The model in the hub's cache, else on the hub. Raises ModelNotFoundError, DownloadError and its kinds."""
    from huggingface_hub import constants  # noqa: PLC0415  the command starts without it

    for cached in cached_repos(address):
        try:
            model = chosen(cached.repo, address.choice)
        except ModelNotFoundError:
            continue
        if address.choice is not None or model.quant == DEFAULT_QUANT or constants.is_offline_mode():
            return Found(address, cached.repo, model, cached.folder)
    if constants.is_offline_mode():
        raise DownloadError(
            f"HF_HUB_OFFLINE is set, and the hub's cache in {printable(constants.HF_HUB_CACHE)} does not have"
            f" {address.repo_id}:{printable(address.choice or DEFAULT_QUANT)}: unset it to fetch the model"
        )
    repo = read_repo(address)
    return Found(address, repo, chosen(repo, address.choice), None)


def pull(
    found: Found,
    store: Store,
    progress: Callable[[int], None],
    waiting: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Record:
    """Fetch the model where it is not here, and record it. Raises ModelError; what `download.fetch` raises leaves it to go on with."""
    names, aliases = (found.name, found.longer_name), (found.alias, f"hf.co/{found.alias}")
    if found.folder is not None:
        paths = tuple(found.folder.joinpath(file.name) for file in found.model.files)
        return store.adopt_from_hub(names, aliases, paths, ())
    from pinyon.models.hub.remote_header import remote_headers  # noqa: PLC0415  what is here needs no library of the hub

    remote_headers(found.repo, found.model, cancelled, within_s=math.inf)  # what cannot be run is not fetched
    paths = download.fetch(found.repo, found.model, store.models_dir, progress, waiting, cancelled)
    sha256s = tuple(file.sha256 for file in found.model.files if file.sha256 is not None)
    return store.adopt_from_hub(names, aliases, paths, sha256s)


def _alias(address: Address, label: str) -> str:
    revision = "" if address.revision is None else f"@{address.revision}"
    return f"{address.repo_id}{revision}:{label}".lower()


def _short(name: str) -> str:
    return slug(name.removesuffix("-gguf"))
