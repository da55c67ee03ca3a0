"""Stores of other programs, as those programs lay them out, with files of the caller's."""

import hashlib
import json
from pathlib import Path


def ollama_model(root: Path, name: str, data: bytes, *, host: str = "registry.ollama.ai", kind: str = "model") -> Path:
    """Put a model into Ollama's store under `NAMESPACE/NAME:TAG`; return its file."""
    digest = hashlib.sha256(data).hexdigest()
    namespace, _, rest = name.rpartition("/")
    model, _, tag = rest.partition(":")
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}", "size": 10},
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)},
        {"mediaType": "application/vnd.ollama.image.adapter", "digest": f"sha256:{'1' * 64}", "size": 10},
    ]
    manifest = root / "manifests" / host / (namespace or "library") / model / (tag or "latest")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:00"}, "layers": layers}))
    return blob


def hub_file(cache: Path, repo: str, name: str, data: bytes, *, revision: str = "main", is_main: bool = True) -> Path:
    """Put a file into the hub's cache; return its place in the snapshot."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    place = folder / "snapshots" / revision / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(blob)
    if is_main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
    return place
