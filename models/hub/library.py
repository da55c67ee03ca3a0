"""The door to huggingface_hub, which is imported here and where this is: no telemetry, no log lines, its errors as ours.

It knows the endpoint (`HF_ENDPOINT`), the token (`HF_TOKEN`, `hf auth login`), offline mode (`HF_HUB_OFFLINE`) and its own cache.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Final

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pinyon.models.disk import printable
from pinyon.models.errors import (
    DownloadError,
    HubAccessError,
    HubBusyError,
    HubConnectionError,
    ModelError,
    ModelNotFoundError,
)

constants.HF_HUB_DISABLE_TELEMETRY = True  # it would also ask the hub which program has started this one
logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

LISTING_TIMEOUT_S: Final = 30.0
_OVERLOADED: Final = (408, 429, 500, 502, 503, 504)


@contextlib.contextmanager
def hub_errors(repo_id: str | None = None) -> Iterator[None]:
    """Turn what goes wrong on the way to the hub into errors of this tree that say what to do.

    Raises:
        HubAccessError: a token, another token, or the acceptance of a licence is needed.
        ModelNotFoundError: there is no such repository, revision or file.
        HubBusyError: too many requests, or the hub has trouble of its own; later it may work.
        HubConnectionError: it cannot be reached, or the connection broke.
        DownloadError: everything else.
    """
    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(error, repo_id) from None
    except OfflineModeIsEnabled:
        raise DownloadError("HF_HUB_OFFLINE is set, so the hub is not asked: unset it to fetch models") from None
    except HFValidationError as error:
        raise ModelNotFoundError(f"the hub can have no repository {repo_id}: {printable(str(error))}") from None
    except httpx2.TransportError as error:
        reason = printable(str(error)) or type(error).__name__
        raise HubConnectionError(
            f"the connection to the hub failed ({reason}): check the network and that {constants.ENDPOINT} can be reached"
        ) from None
    except UnicodeEncodeError:  # headers are ASCII, and the token is the only one that is the user's
        raise HubAccessError(
            f"the token in {_token_source()} has characters that no token has: copy it again from {_token_page()}"
        ) from None
    except (
        httpx2.HTTPError,
        httpx2.InvalidURL,
        ValueError,
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # the last are JSON of another kind
        raise DownloadError(f"the hub gave an answer that cannot be used: {printable(str(error))}") from None


def _refusal(error: HfHubHTTPError, repo_id: str | None) -> ModelError:
    page = f"{constants.ENDPOINT}/{repo_id or ''}"
    match error:
        case GatedRepoError():
            return HubAccessError(
                f"{repo_id} is gated: accept its licence on {page} while logged in, then set HF_TOKEN to a token of that"
                f" account ({_token_page()}){_sent_token(', which has no access yet')}"
            )
        case RevisionNotFoundError():
            return ModelNotFoundError(f"{repo_id} has no such revision: {page}/tree/main shows what it has")
        case EntryNotFoundError():
            return ModelNotFoundError(f"{repo_id} does not have that file any more: {page}/tree/main shows what it has")
        case RepositoryNotFoundError():
            return ModelNotFoundError(
                f"the hub has no repository {repo_id}, or it is private: `pinyon search WORDS` finds models; for a private"
                f" one set HF_TOKEN to a token that may read it{_sent_token(', which may not')}"
            )
        case _:
            return _refusal_by_status(error)


def _refusal_by_status(error: HfHubHTTPError) -> ModelError:
    status, words = error.response.status_code, printable(error.server_message or "")[:200]
    if status == 401 and get_token() is None:
        return HubAccessError(f"the hub wants a token for this: set HF_TOKEN to one of yours ({_token_page()})")
    if status == 401:
        return HubAccessError(
            f"the hub refused the token in {_token_source()}: make a new one on {_token_page()}; a public repository needs"
            " none, so removing it helps, too"
        )
    if status == 403:
        what = f" ({words})" if words else ""
        return HubAccessError(f"the hub forbids this{what}: {_token_page()} has what tokens may do")
    if status in _OVERLOADED:
        return _busy(error, status)
    return DownloadError(
        f"the hub answered with status {status}{f': {words}' if words else ''}: try again later, or check that {constants.ENDPOINT} is a hub"
    )


def _busy(error: HfHubHTTPError, status: int) -> HubBusyError:
    header = error.response.headers.get("Retry-After", "").strip()
    seconds = float(header) if header.isdecimal() else None
    when = "later" if seconds is None else f"in {seconds:.0f} s"
    if status == 429:
        hint = "" if get_token() else "; with a token in HF_TOKEN more requests are allowed"
        return HubBusyError(f"too many requests to the hub: try again {when}{hint}", seconds)
    return HubBusyError(f"the hub is in trouble (status {status}): try again {when}", seconds)


def _token_page() -> str:
    return f"{constants.ENDPOINT}/settings/tokens"


def _token_source() -> str:
    return "HF_TOKEN" if os.environ.get("HF_TOKEN") else printable(constants.HF_TOKEN_PATH)


def _sent_token(what: str) -> str:
    return f"; the one in {_token_source()} was sent{what}" if get_token() else ""
