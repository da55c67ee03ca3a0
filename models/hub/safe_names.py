"""Which names out of a repository may become files here, under the rules of POSIX and of Windows at once."""

from typing import Final

from pinyon.models.disk import printable
from pinyon.models.errors import DownloadError

_MAX_BYTES: Final = 255
_FORBIDDEN: Final = frozenset('<>:"|?*\\')
_DEVICES: Final = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", "clock$"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"]
)


def checked_parts(name: str) -> tuple[str, ...]:
    """The folders and the file of a repository's `name`, which has `/` between them.

    Raises DownloadError for a name that would lead out of the folder it is put in, or that some system cannot have.
    """
    parts = tuple(name.split("/"))
    if (reason := _fault(name, parts)) is not None:
        raise DownloadError(
            f"the repository names a file {printable(name[:100])!r}, which is refused: {reason}; it may be an attack,"
            " take another repository"
        )
    return parts


def _fault(name: str, parts: tuple[str, ...]) -> str | None:
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        return f"longer than {_MAX_BYTES} bytes"
    if not name.isprintable():
        return "it has characters that cannot be printed"
    if not _FORBIDDEN.isdisjoint(name):
        return f"none of {' '.join(sorted(_FORBIDDEN))} may be in it"
    return next((reason for part in parts if (reason := _fault_of_part(part)) is not None), None)


def _fault_of_part(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "it is absolute, or leads out of its folder"
    if part[-1] in ". ":
        return "a part of it ends with a dot or a space"
    if part.partition(".")[0].rstrip().lower() in _DEVICES:
        return f"{part} is a device on Windows"
    return None
