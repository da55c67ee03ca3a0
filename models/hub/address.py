"""How people write where on the hub a model is: OWNER/REPO, OWNER/REPO:QUANT, a file, hf.co/..., a URL out of the browser."""

import re
from dataclasses import dataclass
from typing import Final

from pinyon.models.disk import printable
from pinyon.models.errors import DownloadError, ModelNotFoundError
from pinyon.models.hub.safe_names import checked_parts

_HOST: Final = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_PLAIN: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^:/]+))?(?::(?P<choice>.+))?", re.ASCII)
_LATEST: Final = "latest"
_PATH_STARTS: Final = ("/", "~", ".")


@dataclass(frozen=True, slots=True)
class Address:
    """A repository, and which of its models: `choice` is a quantisation, a file or a folder of it; None is for a default.

    `revision` is a branch, tag or commit; None is the main branch.
    """

    repo_id: str
    revision: str | None = None
    choice: str | None = None


def is_address(text: str) -> bool:
    """Whether `text` means something on the hub, rather than a name of the catalogue."""
    return "/" in text


def is_path(text: str) -> bool:
    """Whether `text` is written as a file's path; a file of a repository is after a colon, or after the hub's name."""
    is_file = text.lower().endswith(".gguf") and ":" not in text and not _HOST.match(text)
    return text.startswith(_PATH_STARTS) or is_file


def parse_address(text: str) -> Address:
    """Raises ModelNotFoundError that says how an address is written."""
    text = text.strip().rstrip("/")
    if not text.isprintable() or text.startswith(_PATH_STARTS):
        raise _unknown(text, "it is a path, or not one line")
    rest = _HOST.sub("", text, count=1) if _HOST.match(text) else text
    if (plain := _PLAIN.fullmatch(rest)) is not None:
        return _of_plain(text, plain)
    return _parse_url(text, rest)


def _of_plain(text: str, plain: re.Match[str]) -> Address:
    choice = plain["choice"]
    return _checked(text, plain["repo"], plain["revision"], None if choice == _LATEST else choice)


def _parse_url(text: str, rest: str) -> Address:
    """The forms that huggingface_hub knows: pages of files and folders, hf://, the host of HF_ENDPOINT."""
    from huggingface_hub import constants, parse_hf_uri  # noqa: PLC0415  plain addresses need no library
    from huggingface_hub.errors import HfUriError  # noqa: PLC0415

    if (plain := _PLAIN.fullmatch(rest.removeprefix(f"{constants.ENDPOINT}/"))) is not None:
        return _of_plain(text, plain)
    try:
        uri = parse_hf_uri(text if rest == text and "://" in text else f"hf.co/{rest}", endpoint=constants.ENDPOINT)
    except HfUriError as error:
        raise _unknown(text, error.msg) from None
    if uri.type != "model":
        raise _unknown(text, f"it names a {uri.type}")
    return _checked(text, uri.id, uri.revision, uri.path_in_repo or None)


def _checked(text: str, repo_id: str, revision: str | None, choice: str | None) -> Address:
    try:
        checked_parts(repo_id)
    except DownloadError as error:
        raise _unknown(text, str(error)) from None
    return Address(repo_id, None if revision == "main" else revision, choice)


def _unknown(text: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{printable(text)} is no model's address ({printable(reason)}): write OWNER/REPO, OWNER/REPO:Q4_K_M,"
        " OWNER/REPO:FILE.gguf or the URL of a page of the hub"
    )
