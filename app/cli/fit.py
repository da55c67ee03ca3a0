"""`pinyon fit`: whether a model fits here, with how much context, how fast and how good it would be; also before it is fetched."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pinyon.app.cli import completion
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.terminal import print_json, tell
from pinyon.app.settings import Folders, load_settings

if TYPE_CHECKING:
    from rich.table import Table

    from pinyon.app.verdict import DeviceShare, Here, Verdict
    from pinyon.models.gguf_header import GgufHeader
    from pinyon.models.hub.repo import HubModel, HubRepo
    from pinyon.models.memory.fit import Wish
    from pinyon.models.memory.sizes import ModelSizes

_BAR_CELLS: Final = 10
_LEAST_NAME_CELLS: Final = 14
_TITLES: Final = ("model", "size", "memory", "context", "tok/s *", "quality")
_ANY_WIDTH: Final = 10_000
_KV_TYPES: Final = ("f16", "q8_0", "q4_0")


@click.command(name="fit")
@click.argument("model", metavar="MODEL", shell_complete=completion.models_here)
@click.option("--context", type=click.IntRange(min=2), help="Tokens of context that are wanted.")
@click.option("--kv", "kv_type", type=click.Choice(_KV_TYPES), help="How keys and values are stored.")
@click.option(
    "--draft",
    metavar="MODEL",
    shell_complete=completion.models_here,
    help="A second model that is to have room beside it, with a context of the same size; speeds are those without it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(model: str, context: int | None, kv_type: str | None, draft: str | None, as_json: bool) -> ExitCode:
    """Show whether a model fits into memory here, with how much context, and how fast it would be.

    \b
    MODEL is the name of a model that is here or that `pinyon list` offers, a file's path, or an address on the hub, of which only the header is read:
        OWNER/REPO               all its quantisations
        OWNER/REPO:Q6_K          one of them
    """  # noqa: D301  click needs the control character itself
    from pinyon.app.verdict import here_now, settled_wish  # noqa: PLC0415  the help starts without all of these

    folders = Folders.of_user()
    settings = load_settings(folders)
    here = here_now(folders, settings)
    wish = settled_wish(settings, context, kv_type)
    if draft is not None:
        wish = replace(wish, draft=_beside(folders, draft))
    verdicts = (
        _of_the_hub(model, here, wish) if _is_remote(folders, model) else [_of_a_name(folders, model, here, wish)]
    )
    if as_json:
        print_json(verdicts)
    else:
        _print(verdicts, here, draft)
    return ExitCode.OK if any(each.fits for each in verdicts) else ExitCode.DOES_NOT_FIT


def _is_remote(folders: Folders, model: str) -> bool:
    from pinyon.models.hub.address import is_address, is_path  # noqa: PLC0415
    from pinyon.models.store import Store  # noqa: PLC0415

    return is_address(model) and not (is_path(model) or _is_here(model) or Store(folders.models).knows(model))


def _is_here(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # too long for a path, or below a folder that may not be read
        return False


def _of_a_name(folders: Folders, model: str, here: "Here", wish: "Wish") -> "Verdict":
    from pinyon.app.fit import sizes_here  # noqa: PLC0415
    from pinyon.app.verdict import verdict  # noqa: PLC0415

    name, headers = _named(folders, model)
    sizes = sizes_here(headers)
    _require_possible(wish, sizes)
    return verdict(name, headers, sizes, here, wish)


def _named(folders: Folders, model: str) -> tuple[str, tuple["GgufHeader", ...]]:
    """Return name and headers of a model that is here, or that the catalogue has."""
    from pinyon.models import catalog  # noqa: PLC0415
    from pinyon.models.catalog_headers import catalog_header  # noqa: PLC0415
    from pinyon.models.split_files import headers_of  # noqa: PLC0415
    from pinyon.models.store import Store  # noqa: PLC0415

    store, entry = Store(folders.models), catalog.find(model)
    if entry is not None and not store.knows(model) and not _is_here(model):
        return entry.name, (catalog_header(entry),)
    record = store.resolve(model)
    return record.name, headers_of(record.path)


def _of_the_hub(model: str, here: "Here", wish: "Wish") -> list["Verdict"]:
    """Tell the model that is meant, or the usual one, by its header, and the others of the repository by their sizes."""
    from pinyon.app.fit import sizes_here  # noqa: PLC0415
    from pinyon.app.verdict import verdict, verdict_of_sibling, with_alternatives  # noqa: PLC0415
    from pinyon.models.hub.address import parse_address  # noqa: PLC0415

    repo, meant, headers = _remote(model)
    sizes = sizes_here(headers)
    _require_possible(wish, sizes)
    found = verdict(meant.label, headers, sizes, here, wish)
    if parse_address(model).choice is not None:
        return [found]
    others = [
        verdict_of_sibling(each.label, each.quant, each.size_bytes, (headers, sizes), here, wish)
        for each in repo.models
        if each is not meant and not each.missing
    ]
    return with_alternatives(sorted([found, *others], key=lambda each: each.size_bytes))


def _remote(model: str) -> tuple["HubRepo", "HubModel", tuple["GgufHeader", ...]]:
    """Return a repository, which of its models is meant, and the headers of that."""
    from pinyon.models.hub.address import parse_address  # noqa: PLC0415
    from pinyon.models.hub.remote_header import remote_headers  # noqa: PLC0415
    from pinyon.models.hub.repo import chosen, read_repo  # noqa: PLC0415

    address = parse_address(model)
    repo = read_repo(address)
    meant = chosen(repo, address.choice)
    return repo, meant, remote_headers(repo, meant)


def _beside(folders: Folders, draft: str) -> "ModelSizes":
    from pinyon.app.fit import sizes_here  # noqa: PLC0415

    return sizes_here(_remote(draft)[2] if _is_remote(folders, draft) else _named(folders, draft)[1])


def _require_possible(wish: "Wish", sizes: "ModelSizes") -> None:
    """Refuse what loading would refuse: a context beyond what the model was trained for. Raises DoesNotFitError."""
    from pinyon.engine.config import check_context  # noqa: PLC0415

    if wish.context_tokens is not None and sizes.trained_context:
        check_context(wish.context_tokens, sizes.trained_context)


def _print(verdicts: list["Verdict"], here: "Here", draft: str | None) -> None:
    from rich.console import Console  # noqa: PLC0415  0.1 s
    from rich.measure import Measurement  # noqa: PLC0415

    from pinyon.app.memory_bar import LEGEND  # noqa: PLC0415
    from pinyon.models.disk import printable  # noqa: PLC0415

    console, table = Console(highlight=False), _table(verdicts, "" if draft is None else f" + {draft}")
    whole = Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum
    name_cells = max(len(printable(each.name)) for each in verdicts)
    # Names may be wrapped; figures that were cut would say something else.
    console.width = max(console.width, whole - max(0, name_cells - _LEAST_NAME_CELLS))
    console.print(table)
    print(LEGEND)
    print("* one answer, eight at once, reading a prompt")
    for each in verdicts:
        for line in (*each.compromises, each.remedy, each.faster):
            if line:
                tell(f"{each.name}: {line}")
    if estimates := [each.name for each in verdicts if not each.is_exact]:
        names = ", ".join(estimates)
        tell(f"{names}: estimated, by another quantisation's header or for layers of which not all is known")
    if here.speed is None:
        tell("speeds are not known: `pinyon devices --measure` measures what weights cost here, in some 15 s")


def _table(verdicts: list["Verdict"], beside: str) -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from pinyon.app.memory_bar import bar_text, memory_bar  # noqa: PLC0415
    from pinyon.models.disk import printable  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in _TITLES:
        is_name = title == "model"
        table.add_column(
            title,
            justify="right" if title in {"size", "context"} else "left",
            no_wrap=not is_name,
            overflow="fold",
            min_width=_LEAST_NAME_CELLS if is_name else None,
        )
    for each in verdicts:
        bars = (bar_text(memory_bar(_sizes(share), share.budget_bytes, _BAR_CELLS)) for share in each.devices)
        cells = (
            printable(each.name + beside),
            f"{each.size_bytes / 1e9:.1f} GB",
            "\n".join(bars),
            f"{each.context_tokens:,}" if each.fits else "does not fit",
            _speeds(each),
            each.quality,
        )
        table.add_row(*map(Text, cells))
    return table


def _sizes(share: "DeviceShare") -> tuple[int, int, int]:
    return share.weights_bytes, share.kv_bytes, share.other_bytes


def _speeds(verdict: "Verdict") -> str:
    """One answer, eight at once, and a prompt, in tokens per second."""
    if (speed := verdict.speed) is None:
        return "?"
    return f"{speed.decode_tokens_per_s:.0f}, {speed.batch_tokens_per_s:.0f}, {speed.prefill_tokens_per_s:.0f}"
