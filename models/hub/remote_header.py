"""The headers of a model that is still on the hub: a few megabytes of each file, never its weights."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

from pinyon.models.disk import printable
from pinyon.models.errors import GgufFormatError, HeaderIncompleteError, ModelFileError
from pinyon.models.gguf_header import GgufHeader, check_runnable, parse_header
from pinyon.models.hub.patience import Patience
from pinyon.models.hub.remote_file import RemoteFile
from pinyon.models.hub.repo import HubFile, HubModel, HubRepo
from pinyon.models.split_files import check_parts, part_count

# The first file has the vocabulary before its tensor table; the others have hardly more than a table.
_FIRST_READ_BYTES: Final = 2 << 20
_FIRST_READ_OF_SHARD_BYTES: Final = 128 << 10
_NEXT_READ_BYTES: Final = 4 << 20
_AT_ONCE: Final = 8
WITHIN_S: Final = 60.0


def remote_headers(
    repo: HubRepo, model: HubModel, cancelled: Callable[[], bool] = lambda: False, within_s: float = WITHIN_S
) -> tuple[GgufHeader, ...]:
    """The headers of all files of a model, in their order, checked as those of files here are.

    At most 4 MiB past the end of a tensor table are read. Raises GgufFormatError and UnsupportedModelError that name the file or the
    model, DownloadError and its kinds when they are not here within `within_s` seconds.
    """
    until = time.monotonic() + within_s
    headers: tuple[GgufHeader, ...]
    if len(model.files) == 1:  # on this thread, so that Ctrl+C ends it at once
        headers = (_header(repo, model.files[0], Patience(until, cancelled), _FIRST_READ_BYTES),)
    else:
        headers = _headers_of_parts(repo, model, cancelled, until)
    try:
        if len(headers) > 1 or part_count(headers[0]) > 1:
            check_parts(headers)
        check_runnable(*headers)
    except ModelFileError as error:
        raise type(error)(f"{printable(model.label)} of {repo.repo_id}: {error}") from None
    return headers


def _headers_of_parts(
    repo: HubRepo, model: HubModel, cancelled: Callable[[], bool], until: float
) -> tuple[GgufHeader, ...]:
    stop = threading.Event()
    patience = Patience(until, lambda: stop.is_set() or cancelled())
    firsts = [_FIRST_READ_BYTES] + [_FIRST_READ_OF_SHARD_BYTES] * (len(model.files) - 1)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reads = [
            pool.submit(_header, repo, file, patience, first) for file, first in zip(model.files, firsts, strict=True)
        ]
        try:
            for read in as_completed(reads):
                read.result()
        except BaseException:
            stop.set()  # what the others would still read is of no use
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return tuple(read.result() for read in reads)


def _header(repo: HubRepo, file: HubFile, patience: Patience, first_read_bytes: int) -> GgufHeader:
    remote, data, wanted = RemoteFile(repo, file, patience), bytearray(), first_read_bytes
    while True:
        for piece in remote.stream(len(data), min(wanted, file.size_bytes)):
            data += piece
        try:
            return parse_header(memoryview(data), file.size_bytes)
        except HeaderIncompleteError as error:
            wanted = max(error.needed_bytes, len(data) + _NEXT_READ_BYTES)
        except GgufFormatError as error:
            raise GgufFormatError(f"{printable(file.name)} of {repo.repo_id}: {error}") from None
