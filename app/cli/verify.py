"""`pinyon verify`: read models' files and compare them with what they should be."""

import contextlib
import sys

import click

from pinyon.app.cli import completion
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.progress import fetching
from pinyon.app.cli.terminal import print_json
from pinyon.app.settings import Folders
from pinyon.models.model_record import Record
from pinyon.models.store import Store
from pinyon.models.verification import Verdict, Verification, known_digests, verify


@click.command(name="verify")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.models_here)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, once all is read.")
def command(names: tuple[str, ...], as_json: bool) -> ExitCode:
    """Compare models, all without a NAME, with their SHA-256; check the headers alone where none is known.

    Damage ends the command with code 3.
    """
    store = Store(Folders.of_user().models)
    listing = store.list()
    records = tuple(store.resolve(name) for name in names) or listing.records
    code = ExitCode.OK
    if not names:
        for broken in listing.broken:
            print(f"pinyon: {broken.reason}", file=sys.stderr)
            code = ExitCode.MODEL
    width = max((len(record.name) for record in records), default=0)
    outcomes = []
    for record in records:
        outcome = _verified(record)
        outcomes.append({"name": record.name, "verdict": outcome.verdict, "detail": outcome.detail})
        if not as_json:
            print(f"{record.name:<{width}}  {outcome.verdict:<8}  {outcome.detail}", flush=True)
        if outcome.verdict is Verdict.DAMAGED:
            code = ExitCode.MODEL
    if as_json:
        print_json(outcomes)
    return code


def _verified(record: Record) -> Verification:
    has_digests = any(known_digests(record))
    with (
        fetching(record.name, record.size_bytes) if has_digests else contextlib.nullcontext(lambda _done: None) as told
    ):
        return verify(record, told)
