"""`pinyon stop`: end the running server in good order."""

import asyncio
import contextlib
import sys
import time
from typing import Final

import click
import psutil

from pinyon.app.errors import ServerError
from pinyon.app.limits import SHUTDOWN_GRACE_S
from pinyon.app.running import remove_stale
from pinyon.app.settings import Folders

LEAVING_S: Final = SHUTDOWN_GRACE_S + 5
"""Its open answers get the grace; then its engine ends."""
POLL_S: Final = 0.05


@click.command(name="stop")
def command() -> None:
    """End the running server; its open answers get 10 s to finish. None running is no error."""
    folders = Folders.of_user()
    from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

    server = asyncio.run(find_server(folders))
    if server is None:
        remove_stale(folders)
        print("no server is running", file=sys.stderr)
        return
    with contextlib.suppress(psutil.NoSuchProcess):  # it has gone already
        _end(psutil.Process(server.pid))
    print(f"the server at {server.url} has ended", file=sys.stderr)


def _end(process: psutil.Process) -> None:
    """Raises ServerError where it does not end, psutil.NoSuchProcess where it had."""
    deadline = time.monotonic() + LEAVING_S
    process.terminate()
    # A process whose parent does not ask for its exit status is there as a zombie.
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            raise ServerError(
                f"the server with pid {process.pid} has not ended after {LEAVING_S:g} s: `kill -9 {process.pid}`"
            )
        time.sleep(POLL_S)
