"""A model's files: one GGUF, or the parts that gguf-split makes of one.

Whether a file is a part its metadata says (`split.count`), never its name. Where the other parts are its name says: llama.cpp
loads the first part and looks beside it for `PREFIX-00002-of-00003.gguf` and so on (llama_split_path, llama_split_prefix).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pinyon.models.disk import printable
from pinyon.models.errors import GgufFormatError, ModelFileError
from pinyon.models.gguf_header import GgufHeader, read_header
from pinyon.models.gguf_reader import quoted
from pinyon.models.model_record import FileIdentity

MAX_PARTS: Final = 1000  # ten times the most that anybody publishes
_MISSING_NAMED: Final = 3
_PART_NAME: Final = re.compile(r".+-(?P<number>[0-9]{5})-of-[0-9]{5}\.gguf", re.DOTALL)

COUNT_KEY: Final = "split.count"
NUMBER_KEY: Final = "split.no"
TENSORS_KEY: Final = "split.tensors.count"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model, the first part first, with what each was when its header was read."""

    paths: tuple[Path, ...]
    checked: tuple[FileIdentity, ...]
    headers: tuple[GgufHeader, ...]

    @property
    def stem(self) -> str:
        """The first file's name without its ending, and without the part's number."""
        return self.paths[0].stem.removesuffix(_suffix(0, len(self.paths)).removesuffix(".gguf"))


def headers_of(path: Path) -> tuple[GgufHeader, ...]:
    """The headers of the model that the file at `path` is, or is a part of: the first has the metadata, all have tensors.

    Raises ModelNotFoundError, and ModelFileError that names what is missing or does not fit together.
    """
    return model_files(path).headers


def model_files(path: Path) -> ModelFiles:
    """As headers_of, with the paths; whichever part `path` is, the first one comes first."""
    named = _read(path)
    count = part_count(named.header)
    if count == 1:
        return ModelFiles((path,), (named.identity,), (named.header,))
    paths = _paths(path, named.header, count)
    _require_all(paths)
    read = [named if each == path else _read(each) for each in paths]
    headers = tuple(each.header for each in read)
    try:
        check_parts(headers)
    except GgufFormatError as error:
        raise GgufFormatError(f"{printable(paths[0])}: {error}") from None
    return ModelFiles(paths, tuple(each.identity for each in read), headers)


def part_count(header: GgufHeader) -> int:
    """How many files the model has that this header is of."""
    return max(header.integer(COUNT_KEY) or 1, 1)


def is_later_part(path: Path) -> bool:
    """Whether a file is called as the second or a later part of a model; what is inside only its header tells."""
    name = _PART_NAME.fullmatch(path.name)
    return name is not None and int(name["number"]) > 1


def check_parts(headers: Sequence[GgufHeader]) -> None:
    """Raises GgufFormatError unless these are all parts of one model, in their order."""
    for number, header in enumerate(headers):
        if part_count(header) != len(headers) or header.integer(NUMBER_KEY) != number:
            said = header.integer(NUMBER_KEY)
            claim = "which part it is" if said is None else f"that it is part {said + 1} of {part_count(header)}"
            raise GgufFormatError(
                f"part {number + 1} of {len(headers)} {'does not say' if said is None else 'says'} {claim}: it belongs to"
                " another model; fetch it again"
            )
    names: set[str] = set()
    for number, header in enumerate(headers, start=1):
        for tensor in header.tensors:
            if tensor.name in names:
                raise GgufFormatError(f"part {number} holds the tensor {quoted(tensor.name)}, which an earlier one has")
            names.add(tensor.name)
    for number, header in enumerate(headers, start=1):
        expected = header.integer(TENSORS_KEY)
        if expected != len(names) and (number == 1 or expected is not None):
            claim = f"'{TENSORS_KEY}' is missing" if expected is None else f"'{TENSORS_KEY}' is {expected:,}"
            raise GgufFormatError(
                f"{claim} in part {number}, and the {len(headers)} parts hold {len(names):,} tensors: fetch them again"
            )


@dataclass(frozen=True, slots=True)
class _Read:
    identity: FileIdentity
    header: GgufHeader


def _read(path: Path) -> _Read:
    """The identity is taken first: a file that changes meanwhile is checked again at the next start."""
    return _Read(FileIdentity.of(path), read_header(path))


def _paths(path: Path, header: GgufHeader, count: int) -> tuple[Path, ...]:
    number = header.integer(NUMBER_KEY) or 0
    if count > MAX_PARTS:
        raise GgufFormatError(f"{printable(path)}: '{COUNT_KEY}' is {count:,}; up to {MAX_PARTS:,} are possible")
    prefix = path.name.removesuffix(suffix := _suffix(number, count))
    if prefix in {path.name, ""}:
        raise ModelFileError(
            f"{printable(path)} is part {number + 1} of {count} of a model, and the parts are found by their names:"
            f" give it back the name that ends in '{suffix}', beside the others"
        )
    return tuple(path.with_name(prefix + _suffix(each, count)) for each in range(count))


def _suffix(number: int, count: int) -> str:
    """How the name of a part ends; `number` counts from 0, the name from 1."""
    return f"-{number + 1:05}-of-{count:05}.gguf"


def _require_all(paths: tuple[Path, ...]) -> None:
    missing = [(number, path) for number, path in enumerate(paths, start=1) if not path.exists()]
    if not missing:
        return
    names = ", ".join(printable(path.name) for _, path in missing[:_MISSING_NAMED])
    more = "" if len(missing) <= _MISSING_NAMED else f" and {len(missing) - _MISSING_NAMED} more"
    numbers = "part " + str(missing[0][0]) if len(missing) == 1 else f"{len(missing)} parts"
    raise ModelFileError(
        f"{numbers} of {len(paths)} of the model {'is' if len(missing) == 1 else 'are'} missing: {names}{more}"
        f" should be in {printable(paths[0].parent)}; fetch what is missing, or copy it there"
    )
