"""`pinyon cache`: what is kept of computed prompts on disk, why a prompt was not found there, and how to get rid of it."""

import asyncio
import datetime as dt
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinyon.app.ages import age_s
from pinyon.app.cli import options
from pinyon.app.cli.terminal import print_json
from pinyon.app.counted import counted
from pinyon.app.errors import FolderInUseError, UsageError
from pinyon.app.kv_files import clear, damaged, held, kept, notes
from pinyon.app.running import read_server
from pinyon.app.settings import Folders, load_settings
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.cache_report import Miss
from pinyon.engine.events import Removed
from pinyon.models.disk import printable
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.remote import RemoteService

_REASONS = {
    Miss.NEW: "nothing like the rest is kept",
    Miss.DIVERGED: "what was computed before goes on differently there",
    Miss.RETOKENISED: "the same text was computed before as other tokens",
    Miss.HISTORY_CHANGED: "the history has another answer there than the known one",
    Miss.OTHER_MODEL_OR_SETTINGS: "the rest is kept for another model file, other settings or another build",
    Miss.EVICTED: "the rest had to make room for others",
    Miss.NOT_WORTH_IT: "bringing more back would have taken longer than computing it",
    Miss.NO_ROOM: "there was no room in the context to bring the rest back",
    Miss.UNREADABLE: "the rest could not be read back",
    Miss.NOT_READY: "it was not known yet what is kept on disk: the model had just been loaded",
    Miss.DISABLED: "the request asked to stay out of the cache",
    Miss.UNAVAILABLE: "it is known, but this model, or a deterministic answer, can go on only from where its state was kept",
}


@click.group(name="cache")
def command() -> None:
    """Look after the computed prompts that are kept on disk."""


@command.command()
def status() -> None:
    """Show where it is, how much it holds and may hold."""
    from pinyon.app.kv_budget import MIB, kv_budget  # noqa: PLC0415  psutil takes 10 ms to import

    folders = Folders.of_user()
    budget = kv_budget(folders, load_settings(folders))
    held = kept(folders.kv)
    print(f"folder  {printable(folders.kv)}")
    print(
        f"holds   {sum(each.size_bytes for each in held) // MIB:,} MiB in {counted(sum(each.blocks for each in held), 'block')}"
    )
    print(f"limits  {budget.disk_cap_bytes // MIB:,} MiB on disk, {budget.ram_cap_bytes // MIB:,} MiB in memory")
    server = asyncio.run(_server(folders))
    why_no_disk = budget.why_no_disk if server is None else asyncio.run(server.status()).why_no_disk
    if why_no_disk:
        print(f"pinyon: nothing computed is kept on disk: {why_no_disk}", file=sys.stderr)


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_(as_json: bool) -> None:
    """Show what is kept for each model and its settings, the latest used first."""
    held = kept(Folders.of_user().kv)
    if as_json:
        print_json(held)
        return
    for each in held:
        used = dt.datetime.fromtimestamp(each.used_at).astimezone()
        print(
            f"{each.size_bytes / 1e6:>8.0f} MB  {counted(each.blocks, 'block'):>13}  {used:%Y-%m-%d %H:%M}  {printable(each.about.model)}"
        )


@command.command()
@click.argument("request_id", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def why(request_id: str | None, as_json: bool) -> None:
    """Say what of a request's prompt was reused, and why not more. Without an id: of the last one that is remembered."""
    wanted = (request_id or "").rpartition("-")[2]
    found = [note for note in notes(Folders.of_user().kv) if wanted in ("", note.request_id)]
    if not found:
        raise UsageError(
            "no such request is remembered: only the last 1,000 are, none that was private or without cache, and none "
            "while nothing is kept on disk"
        )
    note, report = found[-1], found[-1].report
    if as_json:
        print_json(note)
        return
    asked = dt.datetime.fromtimestamp(note.time_s).astimezone()
    print(
        f"{asked:%Y-%m-%d %H:%M:%S}: {report.cached:,} of {note.prompt_tokens:,} prompt tokens were reused: {report.resident:,} in the context, ",
        end="",
    )
    print(f"{report.ram:,} from memory, {report.disk:,} from disk")
    if report.miss is not None:
        print(f"from token {report.position:,} on they were not: {_REASONS[report.miss]}")
    if report.miss is Miss.NEW and note.prompt_tokens < BLOCK_TOKENS:
        print(f"of a prompt with less than {BLOCK_TOKENS} tokens nothing is kept on disk")
    if report.got:
        print(f"  known  {report.expected!r}\n  now    {report.got!r}")
    if report.advice:
        print(report.advice)


@command.command(name="clear")
@click.option("--model", metavar="NAME", callback=options.filled, help="Only what is kept for this model.")
@click.option("--older-than", metavar="AGE", help="Only what was written longer ago: 45m, 12h, 30d, 2w.")
def clear_(model: str | None, older_than: str | None) -> None:
    """Delete what is kept, also what a running server holds in memory."""
    folders = Folders.of_user()
    # Without an age also what a wrong clock dates in the future.
    older_than_s = -math.inf if older_than is None else age_s(older_than, "--older-than")
    path = None if model is None else Store(folders.models).resolve(model).path
    if (server := asyncio.run(_server(folders))) is not None:
        cleared = asyncio.run(server.clear(path, older_than_s))
        who = f"the server at {server.url} forgot"
    else:
        cleared, who = _cleared(folders.kv, path, time.time() - older_than_s), "deleted"
    print(f"{who} {counted(cleared.blocks, 'block')} with {cleared.size_bytes / 1e6:,.1f} MB", file=sys.stderr)


async def _server(folders: Folders) -> "RemoteService | None":
    if read_server(folders) is None:
        return None
    from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

    return await find_server(folders)


def _cleared(folder: Path, model: Path | None, before_s: float) -> Removed:
    try:
        with held(folder):
            return clear(folder, model, before_s)
    except FolderInUseError as error:
        print(f"pinyon: {error}: what it holds in memory stays until it ends", file=sys.stderr)
        return clear(folder, model, before_s)


@command.command()
def verify() -> None:
    """Read all that is kept and delete what is damaged."""
    count = bad = 0
    for each in kept(Folders.of_user().kv):
        count += each.blocks
        for path, reason in damaged(each.folder):
            bad += 1
            print(f"{printable(path)}: {reason}; deleted", file=sys.stderr)
    print(f"of {counted(count, 'block')} {bad:,} were damaged")
