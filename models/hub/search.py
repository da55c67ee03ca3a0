"""Searches the hub for repositories with GGUF files. All text in the results is other people's."""

from dataclasses import dataclass
from datetime import datetime


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
    from huggingface_hub import HfApi  # noqa: PLC0415  half a second of imports: only where the hub is asked

    from pinyon.models.hub.library import hub_errors  # noqa: PLC0415

    results = []
    with hub_errors():
        for model in HfApi().list_models(
            search=words,
            filter="gguf",
            sort="downloads",
            limit=limit,
            expand=["downloads", "gated", "gguf", "lastModified", "likes", "tags"],
        ):
            parameters = (model.gguf or {}).get("total")
            results.append(
                SearchResult(
                    repo_id=model.id,
                    parameters=parameters if isinstance(parameters, int) else None,
                    downloads=model.downloads or 0,
                    likes=model.likes or 0,
                    updated_at=model.last_modified,
                    license=next((tag[8:] for tag in model.tags or () if tag.startswith("license:")), None),
                    is_gated=bool(model.gated),
                )
            )
    return tuple(results)
