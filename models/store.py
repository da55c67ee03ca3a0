"""Which models are on this machine: one small JSON record each, in `<models_dir>/<slug>.json`.

Every record is replaced atomically and found by its file name, so writers of different models never meet, listing needs
no lock, and a broken record hides only itself. A model's file may lie anywhere; only a fetched one, inside the folder,
is ever deleted.
"""

import contextlib
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import msgspec

from pinyon.models import catalog
from pinyon.models.catalog import MAX_NAME_CHARS, CatalogEntry, normalised, slug
from pinyon.models.disk import printable, private_folder
from pinyon.models.errors import ModelNotFoundError, StoreError, UnsupportedModelError
from pinyon.models.gguf_header import GgufHeader, check_runnable, read_header
from pinyon.models.model_record import FileIdentity, Record, Source, new_record, read_record, write_record

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(:[a-z0-9][a-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """A record that cannot be read; `reason` is one line for the user."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    records: tuple[Record, ...]
    broken: tuple[BrokenRecord, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """What `remove` did: the record is gone; `deleted` is the model file, if it went too."""

    name: str
    deleted: Path | None


class Store:
    """The models folder. Nothing is created before the first model is recorded."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir.absolute()

    def list(self) -> Listing:
        """All records by name, with the broken ones apart. Raises StoreError when the folder cannot be read."""
        records: list[Record] = []
        broken: list[BrokenRecord] = []
        for file in self._record_files():
            try:
                records.append(read_record(file))
            except StoreError as error:
                broken.append(BrokenRecord(file.stem, str(error)))
        return Listing(tuple(sorted(records, key=lambda record: record.name)), tuple(broken))

    def resolve(self, name_or_path: str) -> Record:
        """The model of that name or alias (any case, `:latest` or not), else the GGUF file at that path.

        A file without a record gets one for this call, with its header checked. Raises ModelNotFoundError,
        ModelFileError, and StoreError when the record of that name is broken.
        """
        if found := self._find(name_or_path):
            return found
        if _looks_like_a_path(name_or_path):
            return self._resolve_path(_absolute(name_or_path))
        raise ModelNotFoundError(_not_found(name_or_path))

    def knows(self, name: str) -> bool:
        """Whether there is a record of that name or alias, readable or not."""
        try:
            return self._find(name) is not None
        except StoreError:
            return True

    def ensure_runnable(self, record: Record) -> Record:
        """`record`, after a new check of its header if the file is another one than the record was made for.

        Raises ModelNotFoundError when the file is gone, ModelFileError when it cannot be run.
        """
        try:
            identity = FileIdentity.of(record.path)
        except ModelNotFoundError:
            raise ModelNotFoundError(
                f"the file of {record.name} was moved or deleted: {printable(record.path)} is not there any more;"
                f" put it back, or `pinyon rm {record.name}` and {_how_to_get(record.name)}"
            ) from None
        if identity == record.checked:
            return record
        _check_header(record.path)
        same_bytes = (identity.size_bytes, identity.mtime_ns) == (record.checked.size_bytes, record.checked.mtime_ns)
        renewed = msgspec.structs.replace(record, checked=identity, sha256=record.sha256 if same_bytes else None)
        if record.source is not Source.PATH:
            with contextlib.suppress(StoreError):  # in a read-only folder the next start checks again
                write_record(self._record_file(renewed.name), renewed)
        return renewed

    def add(self, path: Path, name: str | None = None) -> Record:
        """Record the user's file where it lies; without a `name` it gets one from the file's name.

        A file that is recorded already keeps its name. Raises ModelFileError, ModelNotFoundError, StoreError.
        """
        path = _absolute(str(path))
        identity, header = _check_header(path)
        if (known := self._find_file(path)) is not None:
            if name is not None and normalised(name) != known.name:
                raise StoreError(
                    f"{printable(path)} is here already, as {known.name}: `pinyon rm {known.name}` first to rename it"
                )
            return known
        chosen = self._free_name(path, header) if name is None else _checked_name(name)
        record = new_record(chosen, path, Source.ADDED, identity)
        self._claim(record)
        return record

    def require_free_for(self, entry: CatalogEntry) -> None:
        """Raise StoreError when the user's own file has the catalogue model's name; ask before fetching it."""
        existing = self._find(entry.name)
        if existing is not None and existing.source is Source.ADDED:
            raise StoreError(
                f"the name {entry.name} is taken by {printable(existing.path)}: `pinyon rm {existing.name}` first"
            )

    def adopt(self, entry: CatalogEntry, path: Path) -> Record:
        """Record the finished, verified download of a catalogue model; a record of an earlier one is replaced.

        Raises ModelFileError, and StoreError when the user's own file has that name.
        """
        self.require_free_for(entry)
        path = path.absolute()
        identity, _ = _check_header(path)
        fresh = new_record(entry.name, path, Source.CATALOGUE, identity)
        record = msgspec.structs.replace(fresh, aliases=entry.aliases, sha256=entry.sha256)
        with _store_errors(self.models_dir):
            private_folder(self.models_dir)
        write_record(self._record_file(record.name), record)
        return record

    def adopt_from_hub(
        self, names: tuple[str, ...], aliases: tuple[str, ...], paths: tuple[Path, ...], sha256s: tuple[str, ...]
    ) -> Record:
        """Record a model of the hub; a record of it from an earlier pull, known by the first alias, keeps its name.

        A new one gets the first of `names` that is free. `paths` are its files in their order, `sha256s` what they were
        verified against, empty where they were not. Raises ModelFileError, and StoreError when no name is free.
        """
        identity, _ = _check_header(paths[0])
        known = self._find(aliases[0])
        for name in names if known is None else (known.name,):
            record = msgspec.structs.replace(
                new_record(name, paths[0], Source.HUB, identity),
                aliases=aliases,
                sha256=sha256s[0] if len(sha256s) == 1 else None,
                parts=paths[1:],
            )
            if known is not None:
                write_record(self._record_file(name), record)
                return record
            if self._find(name) is None:
                self._claim(record)
                return record
        raise _taken(names[0])

    def remove(self, name: str) -> Removal:
        """Forget the model of that name, and delete its file if Pinyon fetched it into the models folder.

        A broken record can be removed by the name that the listing gives it; its model file stays.
        Raises ModelNotFoundError, StoreError.
        """
        broken = self._record_file(name)
        try:
            record = self._find(name)
        except StoreError:
            _delete(broken)
            return Removal(broken.stem, deleted=None)
        if record is None:
            raise ModelNotFoundError(f"no model named {printable(name)}: `pinyon list` shows what is here")
        owned = record.source is Source.CATALOGUE and record.path.parent == self.models_dir
        if owned:
            _delete(record.path)
        _delete(self._record_file(record.name))
        return Removal(record.name, deleted=record.path if owned else None)

    def _record_file(self, name: str) -> Path:
        return self.models_dir / f"{slug(normalised(name))}.json"

    def _record_files(self) -> tuple[Path, ...]:
        with _store_errors(self.models_dir):
            if not self.models_dir.exists():
                return ()
            return tuple(file for file in self.models_dir.iterdir() if file.suffix == ".json" and file.name[0] != ".")

    def _find(self, name: str) -> Record | None:
        """By name, by the name's slug, or by alias. Raises StoreError when the record of that name is broken."""
        wanted = normalised(name)
        file = self._record_file(wanted)
        if file.exists():
            record = read_record(file)
            if wanted in (record.name, file.stem):
                return record
        return next((record for record in self.list().records if wanted in record.aliases), None)

    def _find_file(self, path: Path) -> Record | None:
        for record in self.list().records:
            with contextlib.suppress(OSError, ValueError):  # one of the two is not there, or cannot be
                if record.path.samefile(path):
                    return record
        return None

    def _resolve_path(self, path: Path) -> Record:
        if known := self._find_file(path):
            return known
        identity, header = _check_header(path)
        return new_record(_derived_name(path, header), path, Source.PATH, identity)

    def _free_name(self, path: Path, header: GgufHeader) -> str:
        """The file's own name, numbered if another model has it."""
        room_for_number = 6
        base = _derived_name(path, header)[: MAX_NAME_CHARS - room_for_number].rstrip("-._")
        taken = {alias for record in self.list().records for alias in record.aliases}
        return next(
            name
            for name in chain([base], (f"{base}-{number}" for number in count(2)))
            if name not in taken and not self._record_file(name).exists()
        )

    def _claim(self, record: Record) -> None:
        """Write the record of a new name; creating the file first makes sure that two writers cannot both have it."""
        file = self._record_file(record.name)
        if self._find(record.name) is not None:
            raise _taken(record.name)
        with _store_errors(self.models_dir):
            private_folder(self.models_dir)
            try:
                file.touch(mode=0o600, exist_ok=False)
            except FileExistsError:
                raise _taken(record.name) from None
        try:
            write_record(file, record)
        except StoreError:
            _delete(file)
            raise


def _check_header(path: Path) -> tuple[FileIdentity, GgufHeader]:
    """The identity is taken first: a file that changes meanwhile is checked again at the next start."""
    identity = FileIdentity.of(path)
    header = read_header(path)
    try:
        check_runnable(header)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{printable(path)}: {error}") from None
    return identity, header


def _derived_name(path: Path, header: GgufHeader) -> str:
    """From the file's name, which tells quantisations apart; else from the header; else from the name's digest."""
    stem = unicodedata.normalize("NFC", path.stem)
    digest = hashlib.sha256(os.fsencode(stem)).hexdigest()[:8]
    return slug(stem) or slug(header.name or "") or f"model-{digest}"


def _checked_name(name: str) -> str:
    chosen = normalised(name)
    if _NAME.fullmatch(chosen) and len(chosen) <= MAX_NAME_CHARS:
        return chosen
    raise StoreError(
        f"a model cannot be named {printable(name)}: up to {MAX_NAME_CHARS} letters, digits, '.', '_', '-' and one ':'"
        f" are possible, such as {slug(name) or 'my-model'}"
    )


def _looks_like_a_path(text: str) -> bool:
    return text.lower().endswith(".gguf") or text.startswith(("~", ".")) or "/" in text or os.sep in text


def _absolute(path: str) -> Path:
    """Symbolic links and `..` stay as they are: the user's spelling is what messages show."""
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111  Path.expanduser raises for an unknown user


def _taken(name: str) -> StoreError:
    return StoreError(f"the name {name} is taken: choose another name, or `pinyon rm {name}` to free it")


def _not_found(name: str) -> str:
    if (entry := catalog.find(name)) is not None:
        return (
            f"{entry.name} is not on this machine: `pinyon pull {entry.name}` fetches it ({entry.size_bytes:,} bytes)"
        )
    return f"no model named {printable(name)}: `pinyon list` shows what is here and what can be pulled"


def _how_to_get(name: str) -> str:
    return f"`pinyon pull {name}`" if catalog.find(name) else "`pinyon add` it from where it is now"


def _delete(file: Path) -> None:
    with _store_errors(file):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{printable(path)} cannot be used: {error.strerror}") from None
