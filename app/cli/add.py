"""`pinyon add`: register GGUF files where they lie: a file, all below a folder, or what another program has."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.terminal import tell
from pinyon.app.errors import UsageError
from pinyon.app.settings import Folders
from pinyon.models.adoption import folders, places
from pinyon.models.adoption.found import Findings, Found
from pinyon.models.disk import printable
from pinyon.models.errors import ModelError, ModelNotFoundError
from pinyon.models.store import Store

_PLACES = {place.id: place for place in places.PLACES}
_SHOWN_NAMES = 20


@click.command(name="add")
@click.argument("what", nargs=-1, type=click.Path(), metavar="[PATH]... | [NAME]...")
@click.option("--from", "place", type=click.Choice([*_PLACES]), help="Add what another program has: all, or the NAMEs.")
@click.option("--name", help="Name for the model (default: its place's own, or made from the file's name).")
def command(what: tuple[str, ...], place: str | None, name: str | None) -> ExitCode:
    """Make GGUF files usable by name, where they lie. Nothing is copied.

    \b
        pinyon add ~/models/my-model.gguf
        pinyon add ~/models                    all below a folder
        pinyon add --from ollama llama3.2      or lmstudio, hub
    """  # noqa: D301  click needs the control character itself
    if "" in what or not (what or place):
        raise UsageError(f"give the path of a file or a folder, or --from with one of {', '.join(_PLACES)}")
    findings = _found_in(_PLACES[place], what) if place is not None else _found_at(what)
    if name is not None and len(findings.found) != 1:
        raise UsageError(f"--name is for one file, and there are {len(findings.found)}: name one of them")
    asked = {found.path for found in findings.found} if place is not None and what else {*map(Path, what)}
    return _add(Store(Folders.of_user().models), findings, name, asked)


def _found_at(paths: Iterable[str]) -> Findings:
    """What lies at paths; a file is taken as it is."""
    findings = Findings()
    for path in map(Path, paths):
        if not path.is_dir():
            findings += Findings((Found(path),))
            continue
        below = folders.find_in(path)
        if not below.found and not below.unusable:
            raise ModelNotFoundError(f"there is no .gguf file below {printable(path)}")
        findings += below
    return findings


def _found_in(place: places.Place, names: tuple[str, ...]) -> Findings:
    """What a place has under these names, or all that it has. Raises ModelNotFoundError."""
    home = places.user_home()
    findings = places.find(place, home, os.environ)
    if not findings.found and not findings.unusable:
        looked = " and ".join(printable(root) for root in place.roots(home, os.environ))
        raise ModelNotFoundError(f"{place.title} has no models on this machine: looked in {looked}")
    if not names:
        return findings
    chosen: list[Found] = []
    for name in names:
        called = [found for found in findings.found if places.called(found, name)]
        if not called:
            there = [printable(found.name or found.path.stem) for found in findings.found]
            more = f" and {len(there) - _SHOWN_NAMES} more" if len(there) > _SHOWN_NAMES else ""
            raise ModelNotFoundError(
                f"{place.title} has no model named {printable(name)}; it has {', '.join(there[:_SHOWN_NAMES])}{more}"
            )
        chosen += (found for found in called if found not in chosen)
    return Findings(tuple(chosen))


def _add(store: Store, findings: Findings, name: str | None, asked: set[Path]) -> ExitCode:
    """Add what was found: names on stdout, what was done on stderr. It is no success where a file that was `asked` for fails."""
    if len(findings.found) == 1 and not findings.unusable:
        (found,) = findings.found
        print(store.add(found.path, name, suggested=found.name, aliases=found.aliases).name)
        return ExitCode.OK
    before = {record.name for record in store.list().records}
    added: set[str] = set()
    reasons = [unusable.reason for unusable in findings.unusable]
    code = ExitCode.OK
    for found in findings.found:
        try:
            record = store.add(found.path, suggested=found.name, aliases=found.aliases)
        except ModelError as error:
            reasons.append(str(error))
            code = ExitCode.MODEL if found.path in asked else code
            continue
        if record.name not in added:
            added.add(record.name)
            what = "is here already" if record.name in before else "is added"
            print(record.name)
            print(f"{record.name} {what}: {record.size_bytes / 1e6:,.0f} MB, {printable(record.path)}", file=sys.stderr)
    for reason in dict.fromkeys(reasons):
        tell(f"not added: {reason}")
    return code if added else ExitCode.MODEL
