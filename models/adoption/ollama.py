"""Ollama's store: a manifest for each name, and the layers that manifests name as files called by their SHA-256.

`manifests/HOST/NAMESPACE/NAME/TAG` is JSON; the layer of the type `image.model` is the GGUF file `blobs/sha256-HEX`. Other
layers (templates, adapters, projectors, licences) are left alone.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pinyon.models.adoption.found import Findings, Found, Unusable
from pinyon.models.disk import printable

_DEFAULT_HOST: Final = "registry.ollama.ai"
_DEFAULT_NAMESPACE: Final = "library"
_MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
_MAX_MANIFEST_BYTES: Final = 1 << 20


class _Layer(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}):
    media_type: str
    digest: str


class _Manifest(msgspec.Struct, frozen=True):
    layers: list[_Layer] = []


def roots(home: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the store may be: OLLAMA_MODELS, else the user's and the system service's folder."""
    if chosen := environment.get("OLLAMA_MODELS"):
        return (Path(chosen),)
    return (home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"))


def find_in(root: Path) -> Findings:
    """The models of a store; one whose file has several names has them all."""
    names: dict[Path, list[str]] = {}
    unusable: list[Unusable] = []
    try:
        manifests = sorted(path for path in (root / "manifests").glob("*/*/*/*") if path.is_file())
    except OSError as error:
        return Findings((), (Unusable(root, f"{printable(root)} cannot be read: {error.strerror}"),))
    for manifest in manifests:
        name = _name(*manifest.parts[-4:])
        try:
            blob = _model_blob(root, manifest)
        except (OSError, ValueError, RecursionError) as error:
            unusable.append(Unusable(manifest, f"{printable(manifest)} is no manifest of a model: {_reason(error)}"))
            continue
        if blob is not None and not os.path.lexists(blob):
            reason = f"the file of {printable(name)} is missing: {printable(blob)}; `ollama pull` it again"
            unusable.append(Unusable(blob, reason))
        elif blob is not None:
            names.setdefault(blob, []).append(name)
    return Findings(tuple(_found(blob, its_names) for blob, its_names in names.items()), tuple(unusable))


def _model_blob(root: Path, manifest: Path) -> Path | None:
    """The model's file; None where there is none, as in a model that runs elsewhere. Raises OSError, ValueError, RecursionError."""
    with manifest.open("rb") as file:
        layers = msgspec.json.decode(file.read(_MAX_MANIFEST_BYTES), type=_Manifest).layers
    digest = next((layer.digest for layer in layers if layer.media_type == _MODEL_LAYER), None)
    if digest is None:
        return None
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"the digest {printable(digest[:80])} is no SHA-256")
    return root / "blobs" / digest.replace(":", "-")


def _name(host: str, namespace: str, model: str, tag: str) -> str:
    """As Ollama shows it: without its own host and namespace."""
    before = () if (host, namespace) == (_DEFAULT_HOST, _DEFAULT_NAMESPACE) else (namespace,)
    return "/".join((*(() if host == _DEFAULT_HOST else (host,)), *before, f"{model}:{tag}"))


def _found(blob: Path, names: list[str]) -> Found:
    """The shortest name is the model's, without whose it is."""
    first, *others = sorted(names, key=lambda name: (name.count("/"), not name.endswith(":latest"), name))
    short = first.rpartition("/")[2]
    return Found(blob, short, tuple(others) if short == first else (first, *others))


def _reason(error: OSError | ValueError | RecursionError) -> str:
    return printable(error.strerror or "" if isinstance(error, OSError) else str(error))
