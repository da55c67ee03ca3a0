"""From an address to a record: on the hub, in its cache, or here already; a name that says what it is."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import constants
from split_models import split_gguf

from pinyon.models.errors import DownloadError, ModelNotFoundError, StoreError, UnsupportedModelError
from pinyon.models.gguf_reader import ValueType
from pinyon.models.hub.address import parse_address
from pinyon.models.hub.pull import already_here, find, pull
from pinyon.models.model_record import Record, Source
from pinyon.models.store import Store

from ..gguf_files import tiny  # noqa: TID252  the same files as of the other tests of models

MODEL = tiny().encode()
OTHER = tiny(tokens=9).encode()
REPO = "Owner/Llama-3.2-1B-Instruct-GGUF"
NAME = "llama-3.2-1b-instruct:q4_k_m"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home" / "models")


@pytest.fixture
def pulled(store):
    def get(text: str) -> Record:
        return pull(find(parse_address(text)), store, lambda _: None)

    return get


def cache(text: str, files: dict[str, bytes], ref: str | None = "main", commit: str = "a" * 40) -> Path:
    """Lay files into the hub's cache as huggingface_hub does; returns the snapshot."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{text.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for number, (name, data) in enumerate(files.items()):
        blob = folder / "blobs" / f"{commit[0]}{number:063}"
        for path in (blob, snapshot / name):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return snapshot


def test_a_model_of_the_hub_is_recorded_with_names_people_write(hub: FakeHub, store, pulled):
    files = hub.add(REPO, {"L-Q4_K_M.gguf": MODEL, "L-Q8_0.gguf": MODEL + bytes(9)}).files
    record = pulled(REPO)
    assert (record.name, record.source, record.parts) == (NAME, Source.HUB, ())
    assert record.sha256 == files["L-Q4_K_M.gguf"].told_sha256
    assert record.path == store.models_dir / "hub" / REPO / "L-Q4_K_M.gguf"
    for name in (NAME, f"{REPO}:Q4_K_M", f"hf.co/{REPO}:q4_k_m", "llama-3.2-1b-instruct-q4_k_m"):
        assert store.resolve(name) == record


def test_what_is_here_is_told_without_a_request(hub, store, pulled):
    hub.add(REPO, {"L-Q4_K_M.gguf": MODEL})
    record = pulled(REPO)
    hub.asked.clear()
    for text in (REPO, f"{REPO}:Q4_K_M", f"https://huggingface.co/{REPO}"):
        assert already_here(parse_address(text), store) == record
    assert already_here(parse_address(f"{REPO}:Q8_0"), store) is None
    record.path.unlink()
    assert already_here(parse_address(REPO), store) is None
    assert hub.asked == []


def test_another_pull_keeps_the_name_and_takes_the_newer_file(hub, store, pulled):
    hub.add(REPO, {"L-Q4_K_M.gguf": MODEL})
    first = pulled(REPO)
    hub.add(REPO, {"L-Q4_K_M.gguf": OTHER})
    second = pulled(REPO)
    assert (second.name, second.size_bytes) == (first.name, len(OTHER))
    assert store.list().records == (second,)


def test_models_of_the_same_name_from_two_owners(hub, store, pulled):
    for owner in ("one", "two"):
        hub.add(f"{owner}/Model-GGUF", {"m-Q4_0.gguf": MODEL})
    assert [pulled(f"{owner}/Model-GGUF").name for owner in ("one", "two", "one", "two")] == [
        "model:q4_0", "two-model:q4_0", "model:q4_0", "two-model:q4_0",
    ]  # fmt: skip


def test_names_of_the_user_are_left_to_them(hub, store, pulled, tmp_path):
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(MODEL)
    for name in ("model:q4_0", "one-model:q4_0"):
        (tmp_path / f"{name[0]}.gguf").write_bytes(MODEL)
        store.add(tmp_path / f"{name[0]}.gguf", name)
    hub.add("one/Model-GGUF", {"m-Q4_0.gguf": MODEL})
    with pytest.raises(StoreError, match="the name model:q4_0 is taken"):
        pulled("one/Model-GGUF")


@pytest.mark.parametrize(
    ("repo_id", "file", "text", "name"),
    [
        ("o/Tiny", "tiny.gguf", "o/Tiny", "tiny:tiny"),
        ("o/X-GGUF", "x-UD-Q2_K_XL.gguf", "o/X-GGUF:ud-q2_k_xl", "x:ud-q2_k_xl"),
        ("o/X-GGUF", "x-Q4_0.gguf", f"o/X-GGUF@{'c' * 40}", "x:q4_0-cccccccccccc"),
        ("o/_-GGUF", "x-Q4_0.gguf", "o/_-GGUF", "o:q4_0"),
        ("o/" + "n" * 90, "m" * 100 + ".gguf", "o/" + "n" * 90, f"{'n' * 90}:{'m' * 9}"),
    ],
)
def test_names_that_are_made(hub, store, pulled, repo_id, file, text, name):
    hub.add(repo_id, {file: MODEL})
    assert pulled(text).name == name
    assert store.resolve(name).name == name


def test_what_cannot_be_run_is_not_fetched(hub, store, pulled):
    adapter = replace(tiny()).with_value("general.type", ValueType.STRING, "adapter").encode()
    hub.add("o/Adapter", {"a-Q4_0.gguf": adapter + bytes(4 << 20)})
    with pytest.raises(UnsupportedModelError, match="Q4_0 of o/Adapter: an adapter"):
        pulled("o/Adapter")
    assert hub.bytes_sent < 4 << 20
    assert not list(store.models_dir.rglob("*"))
    assert store.list().records == ()


def test_a_cached_file_is_used_where_it_lies_without_a_request(hub, store, pulled):
    snapshot = cache(REPO, {"L-Q4_K_M.gguf": MODEL, "L-Q8_0.gguf": OTHER})
    assert pulled(REPO).path == snapshot / "L-Q4_K_M.gguf"
    record = pulled(f"{REPO.lower()}:q8_0")
    assert (record.path, record.sha256, record.source) == (snapshot / "L-Q8_0.gguf", None, Source.HUB)
    assert hub.asked == []
    store.remove(record.name)
    assert (snapshot / "L-Q8_0.gguf").read_bytes() == OTHER


def test_offline_what_is_cached_is_used_and_what_is_not_is_told(hub, pulled, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=f"HF_HUB_OFFLINE is set, and .* does not have {REPO}:Q4_K_M"):
        pulled(REPO)
    snapshot = cache(REPO, {"L-Q8_0.gguf": MODEL})
    assert pulled(REPO).path == snapshot / "L-Q8_0.gguf"
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        pulled(f"{REPO}:Q6_K")
    assert hub.asked == []


def test_a_cached_quantisation_that_is_not_the_default_does_not_stand_for_it(hub, store, pulled):
    cache(REPO, {"L-Q8_0.gguf": MODEL})
    hub.add(REPO, {"L-Q4_K_M.gguf": OTHER, "L-Q8_0.gguf": MODEL})
    assert pulled(REPO).path.is_relative_to(store.models_dir)


def test_a_revision_that_the_hub_has_deleted_is_found_in_the_cache(hub, pulled):
    old = cache(REPO, {"L-Q4_K_M.gguf": OTHER}, ref=None, commit="d" * 40)
    new = cache(REPO, {"L-Q8_0.gguf": MODEL})
    assert pulled(f"{REPO}:Q4_K_M").path == old / "L-Q4_K_M.gguf"
    assert pulled(f"{REPO}@{'d' * 40}:Q4_K_M").path == old / "L-Q4_K_M.gguf"
    assert pulled(f"{REPO}@main:Q8_0").path == new / "L-Q8_0.gguf"
    assert hub.asked == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_a_read_only_cache_is_enough(hub, pulled):
    snapshot = cache(REPO, {"L-Q4_K_M.gguf": MODEL})
    folders = [Path(constants.HF_HUB_CACHE), *Path(constants.HF_HUB_CACHE).rglob("*")]
    before = {path: path.lstat().st_mtime_ns for path in folders}
    for path in folders:
        if not path.is_symlink():
            path.chmod(0o500 if path.is_dir() else 0o400)
    assert pulled(REPO).path == snapshot / "L-Q4_K_M.gguf"
    assert {path: path.lstat().st_mtime_ns for path in folders} == before
    for path in folders:
        if path.is_dir():
            path.chmod(0o700)


@pytest.mark.skipif(os.name == "nt", reason="other locks there")
def test_a_cache_whose_file_system_has_neither_links_nor_locks_is_enough(hub, pulled, monkeypatch):
    snapshot = cache(REPO, {"L-Q4_K_M.gguf": MODEL})
    (snapshot / "L-Q4_K_M.gguf").unlink()
    (snapshot / "L-Q4_K_M.gguf").write_bytes(MODEL)
    shutil.rmtree(snapshot.parent.parent / "blobs")

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert pulled(REPO).path == snapshot / "L-Q4_K_M.gguf"
    assert hub.asked == []


@pytest.mark.parametrize("damage", ["a shard is missing", "the blob is gone", "it is a file"])
def test_what_the_cache_has_in_part_is_fetched(hub, store, pulled, damage):
    if damage == "a shard is missing":
        cache(REPO, {"L-Q4_K_M-00001-of-00002.gguf": MODEL})
    elif damage == "the blob is gone":
        (cache(REPO, {"L-Q4_K_M.gguf": MODEL}) / "L-Q4_K_M.gguf").resolve().unlink()
    else:
        Path(constants.HF_HUB_CACHE).parent.mkdir()
        Path(constants.HF_HUB_CACHE).write_bytes(b"")
    hub.add(REPO, {"L-Q4_K_M.gguf": OTHER})
    assert pulled(REPO).path.is_relative_to(store.models_dir)


def test_a_shard_that_is_missing_on_the_hub_is_named_before_anything_is_fetched(hub, store, pulled):
    hub.add(REPO, {"L-Q4_K_M-00001-of-00002.gguf": MODEL})
    with pytest.raises(ModelNotFoundError, match=r"lacks 1 of the 2 files of Q4_K_M: L-Q4_K_M-00002-of-00002\.gguf"):
        pulled(REPO)
    assert hub.of("cdn") == []
    assert not store.models_dir.exists()


def test_a_split_model_is_pulled_whole_recorded_once_and_removed_whole(hub, store, pulled, tmp_path):
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(MODEL)
    parts = split_gguf(whole, tmp_path / "L-Q4_K_M", 3)
    files = hub.add(REPO, {f"Q4_K_M/{part.name}": part.read_bytes() for part in parts}).files
    record = pulled(REPO)
    assert record.paths == tuple(store.models_dir / "hub" / REPO / "Q4_K_M" / part.name for part in parts)
    assert record.parts_sha256 == tuple(file.told_sha256 for file in files.values())
    assert record.size_bytes == sum(file.size for file in files.values())
    assert store.list().records == (record,)
    assert store.remove(record.name).deleted == record.paths
    assert not list(store.models_dir.rglob("*.gguf"))
