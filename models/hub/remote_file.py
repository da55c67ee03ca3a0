"""The bytes of a file on the hub, from any offset, over broken connections and servers that answer otherwise than asked.

huggingface_hub's own download keeps nothing of an interrupted one and always reads whole files, so both the header of a
remote file and a download that goes on where another ended read through here, with its session and its token.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, exported lazily

from pinyon.models.disk import printable
from pinyon.models.errors import DownloadError, HubBusyError, HubConnectionError
from pinyon.models.hub.library import hub_errors
from pinyon.models.hub.patience import Patience
from pinyon.models.hub.repo import HubFile, HubRepo

if TYPE_CHECKING:
    import httpx2

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class RemoteFile:
    """One file of a repository at the commit that was listed. For one thread."""

    def __init__(self, repo: HubRepo, file: HubFile, patience: Patience) -> None:
        self._repo_id = repo.repo_id
        self._file = file
        self._patience = patience
        # The hub redirects to where the bytes are, with a signature that expires: every try starts here again. The session
        # takes the token off a request that is sent on to another host.
        self._url = hf_hub_url(repo.repo_id, file.name, revision=repo.commit, endpoint=constants.ENDPOINT)
        self._etag: str | None = None

    def stream(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to `stop`, in pieces as they arrive; a connection that breaks is made again.

        Raises DownloadError and its kinds, ModelNotFoundError where the file has gone.
        """
        position, failures = start, 0
        while position < stop:
            try:
                for piece in self._answer(position, stop):
                    position += len(piece)
                    failures = 0
                    yield piece
            except (HubBusyError, HubConnectionError) as error:
                failures += 1
                self._patience.wait(failures, error)

    def _answer(self, start: int, stop: int) -> Iterator[bytes]:
        """What one request gives of these bytes; the connection is closed once they are here, whatever else it would send."""
        headers = build_hf_headers(headers={"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"})
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            hub_errors(self._repo_id),
            get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response,
        ):
            hf_raise_for_status(response)
            skip, left = self._bytes_before(response, start), stop - start
            for piece in response.iter_raw():
                self._patience.check()
                wanted = piece[skip : skip + left]
                skip -= min(skip, len(piece))
                left -= len(wanted)
                if wanted:
                    yield wanted
                if not left:
                    return
        raise HubConnectionError(
            f"{printable(self._file.name)} broke off {left:,} bytes too early: check the network and try again"
        )

    def _bytes_before(self, response: "httpx2.Response", start: int) -> int:
        """How many bytes of the answer come before `start`: none, or all from the file's first where ranges are ignored.

        Raises DownloadError for an answer that holds something else than this file's bytes.
        """
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise self._wrong(f"compressed bytes ({printable(encoding)})")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise self._wrong("a web page: a proxy or a login may be in the way")
        etag = response.headers.get("ETag")
        if None not in (etag, self._etag) and etag != self._etag:
            raise self._wrong("another file than a moment ago")
        self._etag = etag
        if response.status_code == 200:
            self._check_size(response.headers.get("Content-Length", "*"))
            return start
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start:
            raise self._wrong(f"other bytes than those from {start:,} on")
        self._check_size(match[3])
        return 0

    def _check_size(self, told: str) -> None:
        if told not in ("*", str(self._file.size_bytes)):
            raise self._wrong(f"a file of {printable(told)} bytes instead of {self._file.size_bytes}")

    def _wrong(self, what: str) -> DownloadError:
        return DownloadError(
            f"asked for {printable(self._file.name)} of {self._repo_id}, the hub sent {what}: try again later"
        )
