"""Linux' control groups of this process, and the numbers in their files. Elsewhere there are none.

Source: the kernel's documentation, "Control Group v2" and "Control Groups version 1".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group: the folder of its files, and its name as the kernel has it ("/" is the outermost one that can be seen)."""

    folder: Path
    name: str
    is_v1: bool

    def numbers(self, file: str) -> list[int | None]:
        """Return the words of a file as numbers, None for those that mean no limit ("max", -1) or nothing.

        A file that cannot be read has no words: in a container, groups above its own often lead nowhere.
        """
        return [_number(word) for word in _text(self.folder / file).split()]

    def number(self, file: str) -> int | None:
        """Return the first of the numbers."""
        return next(iter(self.numbers(file)), None)

    def counts(self, file: str) -> dict[str, int]:
        """Return the numbers of a file that has a name and a number in each line."""
        words = [line.split() for line in _text(self.folder / file).splitlines()]
        pairs = ((pair[0], _number(pair[1])) for pair in words if len(pair) == 2)
        return {name: number for name, number in pairs if number is not None}


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where the system shows all groups, and which of them this process is in."""

    root: Path = Path("/sys/fs/cgroup")
    memberships: Path = Path("/proc/self/cgroup")

    def of(self, controller: str) -> Iterator[ControlGroup]:
        """Yield this process' own group for a controller ("memory", "cpu"), then those above it: their limits hold as well."""
        for line in _text(self.memberships).splitlines():
            _, controllers, name = [*line.split(":", 2), "", ""][:3]
            if controllers and controller not in controllers.split(","):
                continue
            folder = self._v1_folder(controllers, controller) if controllers else self.root
            own = Path(name.lstrip("/"))
            if ".." in own.parts:  # outside of what this process may see
                own = Path()
            for group in (own, *own.parents):
                yield ControlGroup(folder / group, (Path("/") / group).as_posix(), is_v1=bool(controllers))

    def _v1_folder(self, controllers: str, controller: str) -> Path:
        """Controllers that are mounted together have one folder; a link with the name of each is usual, and may lack."""
        together = self.root / controllers
        return together if together.exists() else self.root / controller


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _number(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() else None
