"""`pinyon search`: models on the hub."""

import sys
from typing import TYPE_CHECKING

import click

from pinyon.app.cli.terminal import print_json
from pinyon.models.disk import printable

if TYPE_CHECKING:
    from pinyon.models.hub.search import SearchResult

_MAX_RESULTS = 100


@click.command(name="search")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "--limit", type=click.IntRange(1, _MAX_RESULTS), default=20, show_default=True, help="How many to show at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Search the Hugging Face hub for models in GGUF files, the most downloaded first."""
    from pinyon.models.hub.search import search  # noqa: PLC0415  the help starts without it

    results = search(" ".join(words), limit)
    if as_json:
        print_json(results)
        return
    width = max((len(printable(result.repo_id)) for result in results), default=0)
    for result in results:
        print(_line(result, width))
    if results:
        print(f"`pinyon pull {printable(results[0].repo_id)}` fetches the first one's Q4_K_M", file=sys.stderr)
    else:
        print("the hub has no GGUF repository whose name holds these words: try fewer", file=sys.stderr)


def _line(result: "SearchResult", width: int) -> str:
    parameters = "" if result.parameters is None else f"{result.parameters / 1e9:.1f} B"
    updated = "" if result.updated_at is None else f"{result.updated_at:%Y-%m-%d}"
    columns = (
        f"{printable(result.repo_id):<{width}}",
        f"{parameters:>8}",
        f"{result.downloads:>10,} downloads",
        f"{result.likes:>6,} likes",
        f"{updated:<10}",
        printable(result.license or ""),
        "gated" if result.is_gated else "",
    )
    return "  ".join(columns).rstrip()
