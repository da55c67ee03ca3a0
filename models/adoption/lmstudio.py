"""LM Studio's folder: `PUBLISHER/REPO/FILE.gguf`, below the folder that its own settings name (as its command `lms` finds it)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from pinyon.models.adoption import folders
from pinyon.models.adoption.found import Findings, Found, is_projector

_MAX_SETTINGS_BYTES: Final = 1 << 20


class _Settings(msgspec.Struct, frozen=True, rename={"models": "downloadsFolder"}):
    models: str = ""


def roots(home: Path, _environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where models may be: where LM Studio was moved to, today's folder of it, and that of versions before 2025."""
    moved = _folder(_text(home / ".lmstudio-home-pointer").decode("utf-8", "replace").strip())
    homes = (home / moved, home / ".lmstudio", home / ".cache" / "lm-studio")
    return tuple(dict.fromkeys(_models_of(each) for each in homes if each != home))


def _models_of(studio: Path) -> Path:
    """Return the folder that the settings name; `models` where they name none, or cannot be read."""
    try:
        named = msgspec.json.decode(_text(studio / "settings.json"), type=_Settings).models
    except (msgspec.DecodeError, UnicodeDecodeError):
        named = ""
    return studio / (_folder(named) or "models")


def _folder(named: str) -> str:
    """Return a folder's name; none if it cannot be one."""
    return "" if "\0" in named else named


def _text(path: Path) -> bytes:
    """Return what a small file holds; nothing where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SETTINGS_BYTES)
    except OSError:
        return b""


def find_in(root: Path) -> Findings:
    """The models of a folder; projectors are left out."""
    findings = folders.find_in(root)
    return replace(
        findings, found=tuple(_named(found, root) for found in findings.found if not is_projector(found.path))
    )


def _named(found: Found, root: Path) -> Found:
    folders_above = found.path.relative_to(root).parts[:-1]
    return replace(found, repo="/".join(folders_above[:2])) if len(folders_above) > 1 else found
