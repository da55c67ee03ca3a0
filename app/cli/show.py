"""`pinyon show`: what a model is, by its files' headers."""

import shutil
from typing import Final

import click
import msgspec

from pinyon.app.cli import completion
from pinyon.app.cli.terminal import for_stdout, print_json
from pinyon.app.settings import Folders
from pinyon.engine.weights_digest import MEMORY_NAME, known_digest
from pinyon.models.description import Description, Shown, describe
from pinyon.models.disk import printable
from pinyon.models.errors import TemplateMissingError
from pinyon.models.model_record import Record
from pinyon.models.split_files import headers_of
from pinyon.models.store import Store
from pinyon.models.verification import KnownDigest, known_digests

_LABEL: Final = 13
_MIN_VALUE: Final = 20


@click.command(name="show")
@click.argument("name", metavar="NAME|PATH", shell_complete=completion.models_here)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the template and all metadata with it.")
@click.option("--template", is_flag=True, help="Print the chat template alone.")
def command(name: str, as_json: bool, template: bool) -> None:
    """Show what a model is: size, context, how its tensors are stored, licence, digest, files, metadata."""
    folders = Folders.of_user()
    record = Store(folders.models).resolve(name)
    about = describe(headers_of(record.path))
    if template:
        if about.chat_template is None:
            raise TemplateMissingError(f"{record.name} has no chat template")
        print(for_stdout(about.chat_template))
        return
    digests = _digests(record, known_digest(record.path, folders.kv / MEMORY_NAME))
    if as_json:
        print_json(
            {
                "name": record.name,
                "aliases": record.aliases,
                "source": record.source,
                "files": [
                    {
                        "path": path,
                        "size_bytes": identity.size_bytes,
                        "sha256": None if digest is None else digest.sha256,
                        "sha256_by": None if digest is None else digest.witness,
                    }
                    for path, identity, digest in zip(record.paths, record.identities, digests, strict=True)
                ],
                **msgspec.structs.asdict(about),
            }
        )
        return
    for label, value in _rows(record, about, digests):
        print(f"{label:<{_LABEL}}{printable(value)}")
    print("\nmetadata")
    room = max(shutil.get_terminal_size().columns, 80)
    for key, shown in about.metadata.items():
        line = f"  {printable(key)} = "
        print(line + _cut(printable(_text(shown)), max(room - len(line), _MIN_VALUE)))


def _digests(record: Record, remembered: str) -> tuple[KnownDigest | None, ...]:
    """Of each file, what it should be; else what it was when it was loaded last, if that is one file's."""
    known = known_digests(record)
    return (KnownDigest(remembered, "what was loaded last"),) if known == (None,) and remembered else known


def _rows(record: Record, about: Description, digests: tuple[KnownDigest | None, ...]) -> list[tuple[str, str]]:
    template = (
        "none" if about.chat_template is None else f"{len(about.chat_template):,} characters (--template shows it)"
    )
    rows = [
        ("name", ", ".join((record.name, *record.aliases))),
        ("title", about.title),
        ("architecture", about.architecture),
        ("parameters", f"{about.parameters / 1e6:,.1f} M"),
        ("size", f"{record.size_bytes / 1e6:,.0f} MB, {about.bits_per_weight:.2f} bits per weight"),
        ("context", None if about.context_tokens is None else f"{about.context_tokens:,} tokens, as trained"),
        ("KV", _kv_text(about)),
        (
            "vocabulary",
            None if about.vocabulary is None else f"{about.vocabulary:,} tokens ({about.tokenizer or 'unnamed'})",
        ),
        ("template", template),
        ("licence", about.license or "not said in the file"),
        *(("tensors" if number == 0 else "", line) for number, line in enumerate(_mix(about))),
        *(("file" if number == 0 else "", str(path)) for number, path in enumerate(record.paths)),
        *(("sha256" if number == 0 else "", _digest_text(digest)) for number, digest in enumerate(digests)),
    ]
    return [(label, value) for label, value in rows if value is not None]


def _kv_text(about: Description) -> str | None:
    """What a token of context takes; None where the model keeps nothing for single tokens."""
    if not any(about.kv_bytes_per_token.values()):
        return None
    return "a token: " + ", ".join(
        f"{size / 1024:,.1f} KiB as {kind}" for kind, size in about.kv_bytes_per_token.items()
    )


def _digest_text(digest: KnownDigest | None) -> str:
    return "unknown" if digest is None else f"{digest.sha256}, by {digest.witness}"


def _mix(about: Description) -> list[str]:
    """A line a group: how many bytes, in which types."""
    return [
        f"{group.group:<12} {group.whole.size_bytes / 1e6:>9,.1f} MB  {group.whole.bits_per_weight:>5.2f} bits  "
        + ", ".join(f"{share.type} {share.size_bytes / 1e6:,.1f} MB" for share in group.types)
        for group in about.groups
    ]


def _text(value: Shown) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, str | int | float) else f"{value.count:,} of {value.type}"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
