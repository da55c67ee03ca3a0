"""The running server as this user's other processes find it: the lock on the data folder, server.json, and the proof.

A port number proves nothing, since anything may answer there. So the server writes a secret into a file that only its user
can read, and whoever answers must prove that it knows the secret, which itself never travels.
"""

import contextlib
import hmac
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

import msgspec

from pinyon.app.errors import ServerError
from pinyon.app.locks import LockHeldError, locked
from pinyon.app.settings import Folders
from pinyon.models.disk import printable, private_folder, write_atomically

MAX_FILE_BYTES: Final = 64 << 10
KEY_HEADER: Final = "X-Pinyon-Key"
_CHALLENGE = re.compile("[0-9a-f]{32,128}")


class ServerFile(msgspec.Struct, frozen=True):
    """What server.json says. `token_file` is for the user's other programs; commands show the nonce's key instead."""

    url: str
    pid: int
    nonce: str
    token_file: str | None = None


def proof(nonce: str, challenge: str) -> str:
    """Return what only a holder of the nonce can say to this challenge: HMAC-SHA256, in hex."""
    return hmac.digest(nonce.encode(), challenge.encode(), "sha256").hex()


def key(nonce: str) -> str:
    """Return what a command sends to show that it could read server.json. No challenge has this form: it cannot be asked for."""
    return proof(nonce, "key")


def is_challenge(text: str) -> bool:
    """Whether it is 32 to 128 hex digits, as a client's challenge must be."""
    return _CHALLENGE.fullmatch(text) is not None


def read_server(folders: Folders) -> ServerFile | None:
    """Return what server.json says about a process that is alive.

    None where there is no such file, or it is damaged, or another user could have read or written it: its secret is none.
    """
    try:
        server = msgspec.json.decode(_read_private(folders), type=ServerFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    import psutil  # noqa: PLC0415  takes 10 ms, and mostly no server was started

    return server if server.pid > 0 and psutil.pid_exists(server.pid) else None


def _read_private(folders: Folders) -> bytes:
    # Without O_NONBLOCK a named pipe would hold the command up for ever. Windows knows neither.
    descriptor = os.open(folders.server_file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            raise PermissionError(f"{folders.server_file} is not this user's alone")
        return file.read(MAX_FILE_BYTES)


def _is_private(status: os.stat_result) -> bool:
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)


@contextlib.contextmanager
def published(folders: Folders, server: ServerFile) -> Iterator[None]:
    """Let others find the server for as long as the context lasts.

    Raises:
        ServerError: server.json cannot be written.
    """
    try:
        private_folder(folders.runtime)
        write_atomically(folders.server_file, msgspec.json.encode(server))
    except OSError as error:
        raise ServerError(f"{printable(folders.server_file)} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        _withdraw(folders, server)


def _withdraw(folders: Folders, server: ServerFile) -> None:
    """Remove server.json, unless another server has written its own since."""
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        if msgspec.json.decode(_read_private(folders), type=ServerFile).nonce == server.nonce:
            folders.server_file.unlink()


@contextlib.contextmanager
def data_folder_held(folders: Folders) -> Iterator[None]:
    """Be the only server on the data folder. The system frees the lock when this process ends, however it ends.

    Raises:
        ServerError: another server holds the folder, or it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folders.data / "server.lock"))
        except LockHeldError:
            raise ServerError(_held_by(folders)) from None
        except OSError as error:
            raise ServerError(f"{printable(folders.data)} cannot be locked: {error.strerror}") from error
        yield


def remove_stale(folders: Folders) -> None:
    """Remove the server.json of a server that was killed. Raises ServerError where one still holds the data folder."""
    if folders.server_file.exists():
        with data_folder_held(folders):
            folders.server_file.unlink(missing_ok=True)


def _held_by(folders: Folders) -> str:
    server = read_server(folders)
    if server is None:
        return f"another server holds {printable(folders.data)}: use that one, or end it"
    return (
        f"the server with pid {server.pid} at {server.url} holds {printable(folders.data)}: use that one, or end it "
        f"with `pinyon stop`, or where that does not help with `kill {server.pid}`"
    )
