"""What a look around finds: files to add where they lie, and what cannot be used."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Found:
    """A model's file; of a split model, one of its parts.

    `name` and `aliases` are what its place calls it, empty where that names nothing but files; `repo` is the `owner/repo`
    that it comes from.
    """

    path: Path
    name: str = ""
    aliases: tuple[str, ...] = ()
    repo: str = ""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Something that is not what it should be; `reason` is one line for the user."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    found: tuple[Found, ...] = ()
    unusable: tuple[Unusable, ...] = ()

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(self.found + other.found, self.unusable + other.unusable)


def is_projector(path: Path) -> bool:
    """Whether a file is called as those are that go along with a model, and are none."""
    return "mmproj" in path.name.lower()
