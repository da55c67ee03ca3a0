"""Searches the hub for repositories with GGUF files. All text in the results is other people's."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_EXPANDED: Final = ("downloads", "gated", "gguf", "lastModified", "likes", "tags")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A repository. None is for what the hub does not know; `parameters` is a number of weights, downloads are those of 30 days."""

    repo_id: str
    parameters: int | None
    downloads: int
    likes: int
    updated_at: datetime | None
    license: str | None
    is_gated: bool


def search(words: str, limit: int) -> tuple[SearchResult, ...]:
    """The `limit` most downloaded repositories whose names hold the words. Raises DownloadError and its kinds."""
    from huggingface_hub import (  # noqa: PLC0415  half a second of imports: only where the hub is asked
        ModelInfo,
        constants,
        get_session,
        hf_raise_for_status,
    )
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415

    from pinyon.models.hub.library import LISTING_TIMEOUT_S, hub_errors  # noqa: PLC0415

    query = {"search": words, "filter": "gguf", "sort": "downloads", "limit": str(limit), "expand": _EXPANDED}
    with hub_errors():
        # HfApi.list_models has no timeout, and waits in silence as often and as long as a busy hub says
        response = get_session().get(
            f"{constants.ENDPOINT}/api/models", params=query, headers=build_hf_headers(), timeout=LISTING_TIMEOUT_S
        )
        hf_raise_for_status(response)
        return tuple(_result(ModelInfo(**each)) for each in response.json()[:limit])  # type: ignore[no-untyped-call]


def _result(model: "ModelInfo") -> SearchResult:
    parameters = (model.gguf or {}).get("total")
    return SearchResult(
        repo_id=model.id,
        parameters=parameters if isinstance(parameters, int) else None,
        downloads=model.downloads or 0,
        likes=model.likes or 0,
        updated_at=model.last_modified,
        license=next((tag[8:] for tag in model.tags or () if tag.startswith("license:")), None),
        is_gated=bool(model.gated),
    )
