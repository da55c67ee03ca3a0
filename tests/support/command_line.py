"""`pinyon` as a user runs it: a process with streams, arguments, an exit code, and a home of its own."""

import os
import subprocess
import sys
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
