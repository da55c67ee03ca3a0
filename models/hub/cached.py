"""What the hub's own cache on this machine has of a repository: used where it lies, without a request and without writing there."""

from dataclasses import dataclass
from pathlib import Path

from pinyon.models.hub.address import Address
from pinyon.models.hub.repo import HubFile, HubRepo, grouped


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """The cached part of a repository at one commit, below `folder`."""

    repo: HubRepo
    folder: Path


def cached_repos(address: Address) -> list[CachedRepo]:
    """The commits of this repository in the cache: the one that the revision means first, then the latest; those alone for a given one."""
    from huggingface_hub import constants, scan_cache_dir  # noqa: PLC0415  only where the hub's cache is looked into
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError, OSError):  # there is none, or none that can be read
        return []
    wanted_id = address.repo_id.lower()  # the hub does not tell them apart by case, and records' names have none
    found = next((one for one in cache.repos if one.repo_type == "model" and one.repo_id.lower() == wanted_id), None)
    if found is None:
        return []
    wanted = address.revision or "main"
    revisions = sorted(found.revisions, key=lambda one: (wanted in one.refs, one.last_modified), reverse=True)
    return [
        CachedRepo(
            grouped(
                found.repo_id,
                one.commit_hash,
                (
                    HubFile(file.file_path.relative_to(one.snapshot_path).as_posix(), file.size_on_disk, None)
                    for file in one.files
                ),
            ),
            one.snapshot_path,
        )
        for one in revisions
        if address.revision is None or address.revision in (one.commit_hash, *one.refs)
    ]
