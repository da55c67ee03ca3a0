"""What a model may be called, and what it is called where nobody says."""

import hashlib
import os
import re
import unicodedata

from pinyon.models.catalog import MAX_NAME_CHARS, normalised, slug
from pinyon.models.disk import printable
from pinyon.models.errors import StoreError
from pinyon.models.split_files import ModelFiles

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(:[a-z0-9][a-z0-9._-]*)?")


def checked_name(name: str) -> str:
    """The one spelling of a name that the user chose. Raises StoreError where no model can be called so."""
    chosen = normalised(name)
    if _is_possible(chosen):
        return chosen
    raise StoreError(
        f"a model cannot be named {printable(name)}: up to {MAX_NAME_CHARS} letters, digits, '.', '_', '-' and one ':'"
        f" are possible, such as {slug(name) or 'my-model'}"
    )


def possible_name(text: str) -> str:
    """`text` if a model can be called so, else what is left of it; may come out empty."""
    name = normalised(text)
    return name if _is_possible(name) else slug(text)


def name_of(files: ModelFiles) -> str:
    """From the file's name, which tells quantisations apart; else from the header; else from the name's digest."""
    stem = unicodedata.normalize("NFC", files.stem)
    digest = hashlib.sha256(os.fsencode(stem)).hexdigest()[:8]
    return slug(stem) or slug(files.headers[0].name or "") or f"model-{digest}"


def _is_possible(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) is not None
