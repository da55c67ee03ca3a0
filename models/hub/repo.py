"""What a repository holds that could be run: its GGUF files, grouped to models, and which of them is meant."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pinyon.models.disk import printable
from pinyon.models.errors import DownloadError, ModelNotFoundError
from pinyon.models.hub.address import Address

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

DEFAULT_QUANT: Final = "Q4_K_M"
_NEXT_BEST: Final = (
    "Q4_K_S Q4_K_XL Q4_K_L IQ4_XS IQ4_NL MXFP4 MXFP4_MOE Q4_0 Q4_1 Q5_K_S Q5_K_M Q5_0 Q5_1 Q3_K_L Q3_K_M Q6_K Q8_0"
)

_SHA256 = re.compile("[0-9a-f]{64}")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_QUANT = re.compile(
    r"(?<![a-z0-9])((?:ud-)?(?:i?q\d(?:_(?:\d+|k|xxs|xs|s|m|l|xl|xxl|nl|p))*|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|fp?16|fp?32))"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file by its name in the repository, with `/` between folders. `sha256` is what the hub keeps it under."""

    name: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model of a repository: a file, or the shards of one in their order.

    `quant` is read off the names, upper case, and may be empty; `label` is it, or where that would not tell models apart the
    file's name. `missing` are the shards that the repository lacks.
    """

    quant: str
    label: str
    files: tuple[HubFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository at one commit: its models by size, and the GGUF files that are none by themselves."""

    repo_id: str
    commit: str
    models: tuple[HubModel, ...]
    projectors: tuple[HubFile, ...]
    imatrices: tuple[HubFile, ...]


def read_repo(address: Address) -> HubRepo:
    """Ask the hub what the repository holds, in one request.

    Raises ModelNotFoundError where there is none, or no GGUF file in it, and DownloadError.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  half a second of imports: only where the hub is asked

    from pinyon.models.hub.library import LISTING_TIMEOUT_S, hub_errors  # noqa: PLC0415

    with hub_errors(address.repo_id):
        found = HfApi().model_info(
            address.repo_id, revision=address.revision, files_metadata=True, timeout=LISTING_TIMEOUT_S
        )
        files = [_file(sibling) for sibling in found.siblings or () if sibling.size is not None]
    if found.sha is None:
        raise DownloadError(f"the hub does not say at which commit {address.repo_id} is: try again")
    return grouped(found.id, found.sha, files)


def _file(sibling: "RepoSibling") -> HubFile:
    """Raises ValueError for a size or a digest that is none: names of files here are made of digests."""
    size, sha256 = sibling.size, sibling.lfs.sha256 if sibling.lfs else None
    if not isinstance(size, int) or size < 0 or (sha256 is not None and not _SHA256.fullmatch(sha256)):
        raise ValueError(f"{sibling.rfilename} has the size {size!r} and the SHA-256 {sha256!r}")
    return HubFile(sibling.rfilename, size, sha256)


def grouped(repo_id: str, commit: str, files: Iterable[HubFile]) -> HubRepo:
    """The GGUF files among `files` as a repository."""
    pieces: dict[tuple[str, int], dict[int, HubFile]] = defaultdict(dict)
    projectors: list[HubFile] = []
    imatrices: list[HubFile] = []
    for file in files:
        base, dot, extension = file.name.rpartition(".")
        if not dot or extension.lower() != "gguf":
            continue
        name = PurePosixPath(base).name.lower()
        if "mmproj" in name:
            projectors.append(file)
        elif "imatrix" in name and not _QUANT.search(base):
            imatrices.append(file)
        else:
            stem, number, count = _shard(base)
            pieces[stem, count][number] = file
    models = [_model(stem, count, numbered) for (stem, count), numbered in pieces.items()]
    return HubRepo(repo_id, commit, _labelled(models), tuple(projectors), tuple(imatrices))


def chosen(repo: HubRepo, choice: str | None) -> HubModel:
    """The model that `choice` means: a file's name, a quantisation in any case, or a folder; None is Q4_K_M or what is closest.

    Raises ModelNotFoundError that lists what there is, or names the shards that are missing.
    """
    if not repo.models:
        raise ModelNotFoundError(
            f"{repo.repo_id} has no GGUF file of a model: `pinyon search {repo.repo_id.partition('/')[2]}` finds those that have"
        )
    candidates = _by_default(repo.models) if choice is None else _by_choice(repo.models, choice)
    if len(candidates) != 1:
        raise ModelNotFoundError(_not_one(repo, choice, candidates))
    (model,) = candidates
    if model.missing:
        names = ", ".join(model.missing[:3]) + (" and more" if len(model.missing) > 3 else "")
        raise ModelNotFoundError(
            f"{repo.repo_id} lacks {len(model.missing)} of the {len(model.files) + len(model.missing)} files of"
            f" {printable(model.label)}: {printable(names)}; nothing was fetched, take another quantisation: {_listed(repo.models)}"
        )
    return model


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def _shard(base: str) -> tuple[str, int, int]:
    """The stem, number and count of a name without extension; a file that is whole is the first of one."""
    match = _SHARD.fullmatch(base)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return base, 1, 1
    return match["stem"], int(match["number"]), int(match["count"])


def _model(stem: str, count: int, numbered: dict[int, HubFile]) -> HubModel:
    missing = tuple(
        f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1) if number not in numbered
    )
    files = tuple(numbered[number] for number in sorted(numbered))
    return HubModel(_quant(stem), PurePosixPath(stem).name, files, missing)


def _quant(stem: str) -> str:
    """The last quantisation in the file's name, else in the nearest folder's."""
    for part in reversed(PurePosixPath(stem).parts):
        if found := _QUANT.findall(part):
            return str(found[-1]).upper()
    return ""


def _labelled(models: list[HubModel]) -> tuple[HubModel, ...]:
    times = Counter(model.quant for model in models)
    labelled = (
        replace(model, label=model.quant) if times[model.quant] == 1 and model.quant else model for model in models
    )
    return tuple(sorted(labelled, key=lambda model: (model.size_bytes, model.label)))


def _by_default(models: tuple[HubModel, ...]) -> list[HubModel]:
    if len(models) == 1:
        return list(models)
    for quant in (DEFAULT_QUANT, *_NEXT_BEST.split()):
        for matches in (_is(quant), _is(f"UD-{quant}")):
            if found := [model for model in models if matches(model)]:
                return found
    return []


def _is(quant: str) -> Callable[[HubModel], bool]:
    return lambda model: model.quant == quant.upper()


def _by_choice(models: tuple[HubModel, ...], choice: str) -> list[HubModel]:
    ways: tuple[Callable[[HubModel], bool], ...] = (
        lambda model: any(file.name == choice for file in model.files),
        lambda model: any(PurePosixPath(file.name).name == choice for file in model.files),
        _is(choice),
        lambda model: model.label.lower() == choice.lower(),
        lambda model: any(file.name.startswith(f"{choice}/") for file in model.files),
    )
    for matches in ways:
        if found := [model for model in models if matches(model)]:
            return found
    return []


def _not_one(repo: HubRepo, choice: str | None, candidates: list[HubModel]) -> str:
    if candidates:
        names = ", ".join(f"{model.files[0].name} ({size_text(model.size_bytes)})" for model in candidates)
        return (
            f"{repo.repo_id} has {len(candidates)} models that this fits: {printable(names)}; write {repo.repo_id}:FILE"
        )
    others = {file.name for file in (*repo.projectors, *repo.imatrices)}
    if choice in others:
        return f"{printable(choice or '')} is no model by itself; {repo.repo_id} has {_listed(repo.models)}"
    if choice is None:
        return f"say which model of {repo.repo_id}: it has {_listed(repo.models)}; write {repo.repo_id}:NAME"
    return f"{repo.repo_id} has no {printable(choice)}; it has {_listed(repo.models)}"


def _listed(models: tuple[HubModel, ...]) -> str:
    return printable(", ".join(f"{model.label} ({size_text(model.size_bytes)})" for model in models))
