"""`pinyon ps`: the running server, and what it is doing."""

import asyncio
import sys

import click
import msgspec

from pinyon.app.settings import Folders
from pinyon.app.wire import Status


@click.command(name="ps")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show the running server: its model, what it is doing, where it is. None running is no error."""
    servers = asyncio.run(_servers())
    if as_json:
        shown = [{"url": url, **msgspec.structs.asdict(status)} for url, status in servers]
        print(msgspec.json.encode({"servers": shown}).decode())
    elif not servers:
        print("no server is running", file=sys.stderr)
    for url, status in () if as_json else servers:
        for name, value in _rows(url, status):
            print(f"{name:<8} {value}")


async def _servers() -> list[tuple[str, Status]]:
    from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

    server = await find_server(Folders.of_user())
    return [] if server is None else [(server.url, await server.status())]


def _rows(url: str, status: Status) -> list[tuple[str, str]]:
    model = status.model or "none is loaded"
    if status.context_tokens is not None:
        model += f" (context {status.context_tokens:,} tokens, {status.threads} threads)"
    return [
        ("model", model),
        ("engine", "shutting down" if status.is_draining else status.engine_state),
        ("answers", f"{status.running} running, {status.waiting} waiting"),
        ("url", url),
        ("pid", str(status.pid)),
        ("up", _duration(int(status.uptime_s))),
    ]


def _duration(seconds: int) -> str:
    """As 1:02:03, with days before it where there are any."""
    days, seconds = divmod(seconds, 86400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} d {clock}" if days else clock
