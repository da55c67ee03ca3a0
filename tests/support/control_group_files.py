"""Control groups of Linux as files in a folder: a container's limits without a container."""

from pathlib import Path

from pinyon.models.machine.control_groups import ControlGroups


def control_groups(folder: Path, memberships: str, files: dict[str, str] | None = None) -> ControlGroups:
    """Return groups of which this process is in `memberships` (the text of /proc/self/cgroup); `files` by their path below the root."""
    (folder / "own").write_text(memberships)
    for name, text in (files or {}).items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return ControlGroups(folder / "groups", folder / "own")
