"""Who can reach the server: bind addresses, the names that it answers to, and the token that keeps others out."""

import ipaddress
import os
import re
import secrets
import shlex
import socket
import stat
from pathlib import Path

import psutil

from pinyon.app.errors import UsageError
from pinyon.app.limits import MAX_CLIENT_TOKENS

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TOKEN = re.compile(r"[!-~]{16,1024}")
_MAX_FILE_BYTES = MAX_CLIENT_TOKENS * 1026


def is_loopback(host: str) -> bool:
    """Whether a bind address is one that only programs on this machine reach. A name other than localhost never counts."""
    address = _address(host)
    return address.is_loopback if address else host.lower() == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether a bind address means every interface of the machine."""
    address = _address(host)
    return address.is_unspecified if address else host == ""


def host_names(bind_host: str) -> frozenset[str]:
    """The names by which a server bound to this address is rightly called, lower case, IPv6 in brackets.

    A machine's own addresses are safe to answer to: a page can make its own name point here, but not an address.
    """
    if is_wildcard(bind_host):
        return LOOPBACK_NAMES | frozenset(map(bracketed, own_addresses()))
    return LOOPBACK_NAMES | {bracketed(bind_host)}


def own_addresses() -> list[str]:
    """The IP addresses of this machine's interfaces, sorted, without IPv6 zones."""
    return sorted(
        {
            entry.address.partition("%")[0]
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        }
    )


def _listening_addresses(wildcard: str) -> list[str]:
    """Where a wildcard can be reached. asyncio makes `::` listen to IPv6 alone; link-local addresses need a zone."""
    bound = _address(wildcard)
    parsed = map(ipaddress.ip_address, own_addresses())
    return [str(one) for one in parsed if not one.is_link_local and (bound is None or one.version == bound.version)]


def bracketed(host: str) -> str:
    """A host as it stands in a URL and in a Host header."""
    address = _address(host)
    if address is None:
        return host.lower()
    return f"[{address}]" if address.version == 6 else str(address)


def require_token(host: str, token_file: Path | None) -> None:
    """Raises UsageError where others than this machine's programs could reach the server, and no token keeps them out."""
    if token_file is None and not is_loopback(host):
        raise UsageError(
            f"binding to {host or 'all interfaces'} opens the server to {_others(host)}: "
            "add --token-file F, and only who knows the token in F is served (F is written if absent)"
        )


def describe_reach(host: str, port: int) -> str:
    """The lines of the banner that say where the server is and who can reach it."""
    if is_loopback(host):
        return f"http://{bracketed(host)}:{port}\nOnly programs on this machine can reach it."
    names = _listening_addresses(host) if is_wildcard(host) else [host]
    lines = [f"http://{bracketed(name)}:{port}" for name in names]
    lines.append(f"Open to {_others(host)}. The token keeps them out; nothing is encrypted on the way.")
    return "\n".join(lines)


def read_or_create_tokens(path: Path) -> tuple[str, ...]:
    """The tokens in the file, which is created (0600) with one where there is none. Raises UsageError, saying what to do."""
    try:
        return (_create_token(path),)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be created: {error.strerror}") from error
    try:
        return _read_tokens(path)
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror}") from error


def _create_token(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token


def _read_tokens(path: Path) -> tuple[str, ...]:
    # Without O_NONBLOCK a named pipe would hold the start up for ever. Windows knows neither.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"--token-file {path} is not a regular file")
        if os.name == "posix" and status.st_mode & 0o077:
            raise UsageError(
                f"--token-file {path} can be used by others (mode {status.st_mode & 0o777:04o}): chmod 600 {shlex.quote(str(path))}"
            )
        content = file.read(_MAX_FILE_BYTES + 1)
    lines = [line.strip() for line in content.decode("ascii", "replace").split("\n")]
    tokens = tuple(dict.fromkeys(filter(None, lines)))
    if fault := _fault_of(lines, len(tokens), len(content)):
        raise UsageError(
            f"--token-file {path} {fault}: it takes a token a line, each of 16 to 1,024 ASCII characters without spaces; "
            "correct it, or delete it, and the next start writes a new one"
        )
    return tokens


def _fault_of(lines: list[str], tokens: int, size_bytes: int) -> str | None:
    if not tokens:
        return "holds no token"
    if tokens > MAX_CLIENT_TOKENS or size_bytes > _MAX_FILE_BYTES:
        return f"holds more than {MAX_CLIENT_TOKENS} tokens"
    number = next((number for number, line in enumerate(lines, 1) if line and not _TOKEN.fullmatch(line)), None)
    return None if number is None else f"holds no token in line {number}"


def _others(host: str) -> str:
    if is_wildcard(host):
        return "everyone who can reach this machine on any of its networks"
    return f"everyone who can reach {host} on your network"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None
