"""The cache of the Hugging Face hub's own library: `models--OWNER--REPO/snapshots/REVISION/FILE.gguf`, links to blobs.

Its layout is documented and stable, so it is read here: importing the library takes longer than this does.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pinyon.models.adoption import folders
from pinyon.models.adoption.found import Findings, Found, Unusable, is_projector
from pinyon.models.disk import printable

_REPO: Final = "models--"


def roots(home: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the cache is, by the variables that the library knows."""
    chosen = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return (Path(os.path.expanduser(chosen)),)  # noqa: PTH111  Path.expanduser raises for an unknown user
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hub_home = environment.get("HF_HOME") or str(cache / "huggingface")
    return (Path(os.path.expanduser(hub_home)) / "hub",)  # noqa: PTH111


def find_in(root: Path) -> Findings:
    """The models of a cache, each file once: as the revision has it that was fetched last."""
    findings = Findings()
    try:
        repos = sorted(path for path in root.iterdir() if path.name.startswith(_REPO))
    except OSError as error:
        return Findings((), (Unusable(root, f"{printable(root)} cannot be read: {error.strerror}"),))
    for repo in repos:
        findings += _of_repo(repo)
    return findings


def _of_repo(repo: Path) -> Findings:
    name = repo.name.removeprefix(_REPO).replace("--", "/")
    found: dict[tuple[str, ...], Found] = {}
    unusable: list[Unusable] = []
    for snapshot in _snapshots(repo):
        findings = folders.find_in(snapshot)
        unusable += findings.unusable
        for each in findings.found:
            inside = each.path.relative_to(snapshot).parts
            if inside not in found and not is_projector(each.path):
                found[inside] = Found(each.path, repo=name)
    return Findings(tuple(found.values()), tuple(unusable))


def _snapshots(repo: Path) -> Iterator[Path]:
    """The revision that `main` stands for first, then the others, the newest first."""
    folder = repo / "snapshots"
    try:
        found = [path for path in folder.iterdir() if path.is_dir()]
        snapshots = sorted(found, key=lambda path: -path.stat().st_mtime_ns)
    except OSError:
        return
    try:
        main = (repo / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    yield from sorted(snapshots, key=lambda path: path.name != main)
