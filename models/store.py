"""Which models are on this machine: one small JSON record each, in `<models_dir>/<slug>.json`.

Every record is replaced atomically and found by its file name, so writers of different models never meet, listing needs
no lock, and a broken record hides only itself. A model's file may lie anywhere; only a fetched one, inside the folder,
is ever deleted.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import msgspec

from pinyon.models import catalog
from pinyon.models.catalog import MAX_NAME_CHARS, CatalogEntry, normalised, slug
from pinyon.models.disk import printable, private_folder
from pinyon.models.errors import ModelNotFoundError, StoreError, UnsupportedModelError
from pinyon.models.gguf_header import check_runnable
from pinyon.models.model_name import checked_name, name_of, possible_name
from pinyon.models.model_record import FileIdentity, Record, Source, new_record, read_record, write_record
from pinyon.models.split_files import ModelFiles, model_files


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
    """What `remove` did: the record is gone; `deleted` are the model's files, if they went too."""

    name: str
    deleted: tuple[Path, ...]


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
        if found := self.find(name_or_path):
            return found
        if _looks_like_a_path(name_or_path):
            return self._resolve_path(_absolute(name_or_path))
        raise ModelNotFoundError(_not_found(name_or_path))

    def find(self, name: str) -> Record | None:
        """By name, by the name's slug, or by alias. Raises StoreError when the record of that name is broken."""
        wanted = normalised(name)
        file = self._record_file(wanted)
        if file.exists():
            record = read_record(file)
            if wanted in (record.name, file.stem):
                return record
        return next((record for record in self.list().records if wanted in record.aliases), None)

    def knows(self, name: str) -> bool:
        """Whether there is a record of that name or alias, readable or not."""
        try:
            return self.find(name) is not None
        except StoreError:
            return True

    def ensure_runnable(self, record: Record) -> Record:
        """`record`, after a new check of its header if the file is another one than the record was made for.

        Raises ModelNotFoundError when a file is gone, ModelFileError when it cannot be run.
        """
        if _identities_now(record) == record.identities:
            return record
        files = _runnable_files(record.path)
        same_bytes = _sizes_and_times(files.checked) == _sizes_and_times(record.identities)
        renewed = msgspec.structs.replace(
            record,
            path=files.paths[0],
            checked=files.checked[0],
            parts=files.paths[1:],
            parts_checked=files.checked[1:],
            sha256=record.sha256 if same_bytes else None,
            parts_sha256=record.parts_sha256 if same_bytes else (),
        )
        if record.source is not Source.PATH:
            with contextlib.suppress(StoreError):  # in a read-only folder the next start checks again
                write_record(self._record_file(renewed.name), renewed)
        return renewed

    def add(self, path: Path, name: str | None = None, *, suggested: str = "", aliases: tuple[str, ...] = ()) -> Record:
        """Record the user's file where it lies; without a `name` it gets the `suggested` one, or one from the file's name.

        Only a `name` must be free: others are numbered where another model has them, and `aliases` left out, as are those
        that cannot be written. A file that is recorded already keeps its name. Raises ModelFileError, ModelNotFoundError, StoreError.
        """
        path = _absolute(str(path))
        files = _runnable_files(path)
        if (known := self.record_of(files.paths[0])) is not None:
            if name is not None and normalised(name) != known.name:
                raise StoreError(
                    f"{printable(path)} is here already, as {known.name}: `pinyon rm {known.name}` first to rename it"
                )
            return known
        chosen = self._free_name(possible_name(suggested) or name_of(files)) if name is None else checked_name(name)
        free = tuple(
            alias
            for alias in map(normalised, aliases)
            if alias.isprintable() and alias != chosen and not self.knows(alias)
        )
        record = msgspec.structs.replace(_record(chosen, files, Source.ADDED), aliases=free)
        self._claim(record)
        return record

    def require_free_for(self, entry: CatalogEntry) -> None:
        """Raise StoreError when the user's own file has the catalogue model's name; ask before fetching it."""
        existing = self.find(entry.name)
        if existing is not None and existing.source is Source.ADDED:
            raise StoreError(
                f"the name {entry.name} is taken by {printable(existing.path)}: `pinyon rm {existing.name}` first"
            )

    def adopt(self, entry: CatalogEntry, path: Path) -> Record:
        """Record the finished, verified download of a catalogue model; a record of an earlier one is replaced.

        Raises ModelFileError, and StoreError when the user's own file has that name.
        """
        self.require_free_for(entry)
        fresh = _record(entry.name, _runnable_files(path.absolute()), Source.CATALOGUE)
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
        files = _runnable_files(paths[0])
        known = self.find(aliases[0])
        for name in names if known is None else (known.name,):
            record = msgspec.structs.replace(
                _record(name, files, Source.HUB),
                aliases=aliases,
                sha256=sha256s[0] if len(sha256s) == 1 else None,
                parts_sha256=sha256s if len(sha256s) > 1 else (),
            )
            if known is not None:
                write_record(self._record_file(name), record)
                return record
            if self.find(name) is None:
                self._claim(record)
                return record
        raise _taken(names[0])

    def remove(self, name: str) -> Removal:
        """Forget the model of that name, and delete its files if Pinyon fetched them, and no other record has them.

        A broken record can be removed by the name that the listing gives it; its model file stays.
        Raises ModelNotFoundError, StoreError.
        """
        broken = self._record_file(name)
        try:
            record = self.find(name)
        except StoreError:
            _delete(broken)
            return Removal(broken.stem, deleted=())
        if record is None:
            raise ModelNotFoundError(f"no model named {printable(name)}: `pinyon list` shows what is here")
        deleted = record.paths if self.owns(record) and not self.sharers_of(record) else ()
        for path in deleted:
            _delete(path)
            _delete_empty_folders(path.parent, self.models_dir)
        _delete(self._record_file(record.name))
        return Removal(record.name, deleted)

    def owns(self, record: Record) -> bool:
        """Whether Pinyon fetched the model's files into the models folder, and may delete them."""
        folder = self.models_dir.resolve()
        return record.source is not Source.ADDED and all(
            path.parent.resolve().is_relative_to(folder) for path in record.paths
        )

    def sharers_of(self, record: Record) -> tuple[str, ...]:
        """The names of the other records that have a file of this one."""
        others = (other for other in self.list().records if other.name != record.name)
        return tuple(other.name for other in others if any(_has_file(other, path) for path in record.paths))

    def record_of(self, path: Path) -> Record | None:
        """The record that has the file at `path`, under whatever spelling."""
        return next((record for record in self.list().records if _has_file(record, path)), None)

    def _record_file(self, name: str) -> Path:
        return self.models_dir / f"{slug(normalised(name))}.json"

    def _record_files(self) -> tuple[Path, ...]:
        with _store_errors(self.models_dir):
            if not self.models_dir.exists():
                return ()
            return tuple(file for file in self.models_dir.iterdir() if file.suffix == ".json" and file.name[0] != ".")

    def _resolve_path(self, path: Path) -> Record:
        if known := self.record_of(path):
            return known
        files = _runnable_files(path)
        return _record(name_of(files), files, Source.PATH)

    def _free_name(self, wanted: str) -> str:
        """The wanted name, numbered if another model has it."""
        room_for_number = 6
        base = wanted[: MAX_NAME_CHARS - room_for_number].rstrip("-._:")
        taken = {alias for record in self.list().records for alias in record.aliases}
        return next(
            name
            for name in chain([base], (f"{base}-{number}" for number in count(2)))
            if name not in taken and not self._record_file(name).exists()
        )

    def _claim(self, record: Record) -> None:
        """Write the record of a new name; creating the file first makes sure that two writers cannot both have it."""
        file = self._record_file(record.name)
        if self.find(record.name) is not None:
            raise _taken(record.name)
        with _store_errors(self.models_dir):
            private_folder(self.models_dir)
            try:
                file.touch(mode=0o600, exist_ok=False)
            except FileExistsError:
                raise _taken(record.name) from None
        try:
            write_record(file, record)
        except BaseException:  # an interruption, too, must not leave a record that is damaged
            _delete(file)
            raise


def _runnable_files(path: Path) -> ModelFiles:
    """Raises ModelNotFoundError, ModelFileError."""
    files = model_files(path)
    try:
        check_runnable(*files.headers)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{printable(path)}: {error}") from None
    return files


def _record(name: str, files: ModelFiles, source: Source) -> Record:
    return new_record(name, files.paths[0], source, files.checked[0], files.paths[1:], files.checked[1:])


def _identities_now(record: Record) -> tuple[FileIdentity, ...]:
    found = []
    for path in record.paths:
        try:
            found.append(FileIdentity.of(path))
        except ModelNotFoundError:
            raise ModelNotFoundError(
                f"the file of {record.name} was moved or deleted: {printable(path)} is not there any more;"
                f" put it back, or `pinyon rm {record.name}` and {_how_to_get(record)}"
            ) from None
    return tuple(found)


def _sizes_and_times(files: tuple[FileIdentity, ...]) -> list[tuple[int, int]]:
    return [(each.size_bytes, each.mtime_ns) for each in files]


def _has_file(record: Record, path: Path) -> bool:
    for own in record.paths:
        with contextlib.suppress(OSError, ValueError):  # one of the two is not there, or cannot be
            if own.samefile(path):
                return True
    return False


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


def _how_to_get(record: Record) -> str:
    return "`pinyon add` it from where it is now" if record.pull_name is None else f"`pinyon pull {record.pull_name}`"


def _delete(file: Path) -> None:
    with _store_errors(file):
        file.unlink(missing_ok=True)


def _delete_empty_folders(folder: Path, end: Path) -> None:
    """Delete `folder` and those above it that are empty then, up to `end`, which stays."""
    with contextlib.suppress(OSError):  # it holds something else
        while folder != end and folder.is_relative_to(end):
            folder.rmdir()
            folder = folder.parent


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{printable(path)} cannot be used: {error.strerror}") from None
