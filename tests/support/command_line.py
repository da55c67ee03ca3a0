"""`pinyon` as a user runs it: a process with streams, arguments, an exit code, and a home of its own."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PINYON = [sys.executable, "-m", "pinyon"]


def environment(home: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINYON_")}
    return {**kept, "PINYON_HOME": str(home), **variables}


def pinyon(
    home: Path, *arguments: object, stdin: bytes = b"", check: bool = False, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PINYON, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(home, **variables),
        check=check,
        timeout=60,
    )


def assert_refused(done: subprocess.CompletedProcess[bytes], code: int, *words: str) -> str:
    """One line on stderr that says these words, nothing on stdout."""
    message = done.stderr.decode()
    assert done.returncode == code, message
    assert done.stdout == b""
    assert "Traceback" not in message
    for word in words:
        assert word in message
    return message


@contextlib.contextmanager
def serving(home: Path, *options: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has said where it is; its process has the attributes `url` and `banner`."""
    with subprocess.Popen(
        [*PINYON, "serve", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, **variables),
    ) as server:
        server.banner = b""
        while b"ends it" not in server.banner and (line := server.stderr.readline()):
            server.banner += line
        server.url = server.banner.decode().split("\n", 1)[0]
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(20)
            finally:
                server.kill()
