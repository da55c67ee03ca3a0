"""LM Studio's folder: `PUBLISHER/REPO/FILE.gguf`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pinyon.models.adoption import folders
from pinyon.models.adoption.found import Findings, Found, is_projector


def roots(home: Path, _environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the folder is: today's, and that of versions before 2025."""
    return (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models")


def find_in(root: Path) -> Findings:
    """The models of a folder; projectors are left out."""
    findings = folders.find_in(root)
    return replace(
        findings, found=tuple(_named(found, root) for found in findings.found if not is_projector(found.path))
    )


def _named(found: Found, root: Path) -> Found:
    folders_above = found.path.relative_to(root).parts[:-1]
    return replace(found, repo="/".join(folders_above[:2])) if len(folders_above) > 1 else found
