"""What a GGUF file says about itself: metadata and tensor table, read in Python before native code sees the file.

`read_header` takes a file, `parse_header` the first bytes of one (a download, a remote file). Whatever the bytes, the
result is a GgufHeader or a ModelFileError. Vocabularies are walked, not kept: a header of 6 MB takes about 0.1 s.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pinyon.models import header_check
from pinyon.models.architectures import KNOWN_ARCHITECTURES
from pinyon.models.disk import printable
from pinyon.models.errors import (
    GgufFormatError,
    HeaderIncompleteError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from pinyon.models.gguf_reader import (
    MAX_HEADER_BYTES,
    MIN_METADATA_BYTES,
    MIN_TENSOR_BYTES,
    TOKENS_KEY,
    Cursor,
    TensorInfo,
    Value,
    quoted,
    read_metadata,
    read_tensors,
)

# One read holds every header but those of the largest vocabularies.
_FIRST_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header that passed every check. Offsets and sizes are bytes; tensors keep the order of the file."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    alignment: int
    file_bytes: int

    @property
    def architecture(self) -> str | None:
        return self.text("general.architecture")

    @property
    def general_type(self) -> str | None:
        """One of "model", "adapter", "mmproj", ...; older files do not say."""
        return self.text("general.type")

    @property
    def name(self) -> str | None:
        return self.text("general.name")

    @property
    def chat_template(self) -> str | None:
        return self.text("tokenizer.chat_template")

    @property
    def block_count(self) -> int | None:
        return self.integer(f"{self.architecture}.block_count")

    @property
    def context_length(self) -> int | None:
        """How many tokens the model was trained for."""
        return self.integer(f"{self.architecture}.context_length")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_header(data: bytes | memoryview, file_bytes: int) -> GgufHeader:
    """The header at the start of a file of `file_bytes` bytes, of which `data` is the first part or all.

    Raises HeaderIncompleteError when the header goes on past `data`, GgufFormatError when it cannot be a model's.
    """
    cursor = Cursor(bytes(data), file_bytes)
    header_check.check_magic(cursor.data[:64], file_bytes)
    cursor.advance(4, "the magic")
    version = cursor.u32("the version")
    header_check.check_version(version)
    tensor_count = cursor.count(MIN_TENSOR_BYTES, "tensors")
    metadata = read_metadata(cursor, cursor.count(MIN_METADATA_BYTES, "metadata entries"))
    header_check.check_metadata(metadata)
    alignment = header_check.checked_alignment(metadata)
    tensors = read_tensors(cursor, tensor_count)
    data_offset = -(-cursor.position // alignment) * alignment
    header_check.check_tensors(tensors, data_offset, alignment, file_bytes)
    values = MappingProxyType({key: entry.value for key, entry in metadata.items()})
    return GgufHeader(version, values, tensors, data_offset, alignment, file_bytes)


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`, of which at most 64 MiB are read.

    Raises ModelNotFoundError, or a ModelFileError in one line that names the path.
    """
    file_bytes = file_status(path).st_size
    with _readable(path), path.open("rb") as file:
        wanted = _FIRST_READ_BYTES
        while True:
            file.seek(0)
            data = file.read(wanted)
            try:
                return parse_header(data, file_bytes)
            except HeaderIncompleteError as error:
                if len(data) < wanted:
                    raise GgufFormatError(
                        f"{printable(path)}: the file shrank from {file_bytes:,} bytes while it was read"
                    ) from None
                wanted = min(max(error.needed_bytes, 2 * wanted), MAX_HEADER_BYTES)
            except GgufFormatError as error:
                raise GgufFormatError(f"{printable(path)}: {error}") from None


def check_runnable(header: GgufHeader, *parts: GgufHeader) -> None:
    """Raises UnsupportedModelError for sound files that are not a language model; `parts` are a split one's other files."""
    architecture = header.architecture
    if header.general_type in ("adapter", "controlvector") or architecture == "controlvector":
        raise UnsupportedModelError(
            "an adapter (LoRA or control vector), not a model: Pinyon does not apply adapters yet"
        )
    if header.general_type in ("mmproj", "clip-vision") or architecture == "clip":
        raise UnsupportedModelError("a vision or audio projector, not a model: run the language model it belongs to")
    if header.general_type == "imatrix":
        raise UnsupportedModelError("an importance matrix, not a model: it is only for quantising one")
    if architecture is None:
        raise UnsupportedModelError("the header does not name an architecture ('general.architecture')")
    if architecture not in KNOWN_ARCHITECTURES:
        raise UnsupportedModelError(
            f"unsupported architecture {quoted(architecture)}: this Pinyon's llama.cpp knows {len(KNOWN_ARCHITECTURES)}"
            " others; a newer Pinyon may know it"
        )
    if TOKENS_KEY not in header.metadata:
        raise UnsupportedModelError(f"the file holds no vocabulary ('{TOKENS_KEY}'), so no text can be read")
    if not any(each.tensors for each in (header, *parts)):
        raise UnsupportedModelError("the file holds no tensors, only a vocabulary or metadata")
    if header.block_count is None:
        raise UnsupportedModelError(f"the header does not say {quoted(f'{architecture}.block_count')}")


def file_status(path: Path) -> os.stat_result:
    """The status of the regular file at `path`. Raises ModelNotFoundError, ModelFileError.

    To be asked before opening: an open would wait for a writer on a FIFO.
    """
    try:
        with _readable(path):
            status = path.stat()
    except ValueError:  # a NUL or another character that no file's name can hold
        raise ModelNotFoundError(f"no file at {printable(path)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{printable(path)} is a folder: give the path of a .gguf file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{printable(path)} is not a regular file but a pipe, socket or device")
    return status


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what the system says about `path` into errors of this tree."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"no file at {printable(path)}") from None
    except OSError as error:
        raise ModelFileError(f"{printable(path)} cannot be read: {error.strerror}") from None
