"""The stores of other programs on this machine, from which models can be added without a copy."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pinyon.models.adoption import hub_cache, lmstudio, ollama
from pinyon.models.adoption.found import Findings, Found, Unusable
from pinyon.models.catalog import normalised
from pinyon.models.disk import printable
from pinyon.models.model_record import Record
from pinyon.models.split_files import is_later_part


@dataclass(frozen=True, slots=True)
class Place:
    """`id` is what `pinyon add --from` calls it, `title` a sentence."""

    id: str
    title: str
    roots: Callable[[Path, Mapping[str, str]], tuple[Path, ...]]
    find_in: Callable[[Path], Findings]


PLACES: Final = (
    Place("ollama", "Ollama's store", ollama.roots, ollama.find_in),
    Place("lmstudio", "LM Studio's folder", lmstudio.roots, lmstudio.find_in),
    Place("hub", "the Hugging Face cache", hub_cache.roots, hub_cache.find_in),
)


def user_home() -> Path:
    """This user's folder; `~` where the system does not know one."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home raises there


def find(place: Place, home: Path, environment: Mapping[str, str]) -> Findings:
    """What lies in a place now, by its folders' listings alone: no model's file is opened."""
    findings = Findings()
    for root in place.roots(home, environment):
        try:
            root.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            findings += Findings((), (Unusable(root, f"{printable(root)} cannot be read: {error.strerror}"),))
        else:
            findings += place.find_in(root)
    return findings


def not_recorded(findings: Findings, records: Sequence[Record]) -> tuple[Found, ...]:
    """What could be added: of a split model one part, nothing that a record has."""
    known = {os.path.realpath(path) for record in records for path in record.paths}
    return tuple(
        found for found in findings.found if not is_later_part(found.path) and os.path.realpath(found.path) not in known
    )


def called(found: Found, name: str) -> bool:
    """Whether a name means this model: what its place calls it, its file's name or stem, its repo, or both; in any case."""
    files = (found.path.name, found.path.stem)
    names = (found.name, *found.aliases, found.repo, *files, *(f"{found.repo}/{file}" for file in files))
    return normalised(name) in {normalised(each) for each in names}


def place_of(path: Path, home: Path, environment: Mapping[str, str]) -> Place | None:
    """The place that a file lies in."""
    real = Path(os.path.realpath(path))
    for place in PLACES:
        for root in place.roots(home, environment):
            if real.is_relative_to(os.path.realpath(root)):
                return place
    return None
