"""`pinyon list`: the models that are here."""

import os
import sys

import click
import msgspec

from pinyon.app.cli.terminal import print_json
from pinyon.app.counted import counted
from pinyon.app.settings import Folders
from pinyon.models import catalog
from pinyon.models.adoption import places
from pinyon.models.disk import printable
from pinyon.models.model_record import Record
from pinyon.models.store import Store


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """Show the models that are here: name, size, where from, file. What could be pulled or added is told on stderr."""
    listing = Store(Folders.of_user().models).list()
    for broken in listing.broken:
        print(f"pinyon: {broken.reason}", file=sys.stderr)
    if as_json:
        print_json([{**msgspec.structs.asdict(record), "size_bytes": record.size_bytes} for record in listing.records])
        return
    width = max((len(record.name) for record in listing.records), default=0)
    for record in listing.records:
        print(_line(record, width))
    here = {record.name for record in listing.records}
    for entry in catalog.CATALOG:
        if entry.name not in here:
            size = f"{entry.size_bytes / 1e6:.0f} MB"
            print(
                f"`pinyon pull {entry.name}` fetches {entry.title} {entry.quantization} ({size}, {entry.license})",
                file=sys.stderr,
            )
    home = places.user_home()
    for place in places.PLACES:
        if found := places.not_recorded(places.find(place, home, os.environ), listing.records):
            print(
                f"`pinyon add --from {place.id}` adds {counted(len(found), 'model')} from {place.title}, where they lie",
                file=sys.stderr,
            )


def _line(record: Record, width: int) -> str:
    return f"{record.name:<{width}}  {record.size_bytes / 1e6:>8.0f} MB  {record.source:<9}  {printable(record.path)}"
