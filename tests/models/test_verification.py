"""Damage is found where anybody says what a file should be; elsewhere that is said, and headers are checked."""

import hashlib
import os

import msgspec
import pytest
from other_stores import hub_file, ollama_model
from split_models import split_gguf

from pinyon.models.catalog import find
from pinyon.models.model_record import Source
from pinyon.models.store import Store
from pinyon.models.verification import KnownDigest, Verdict, known_digests, verify


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "models")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def zeroed(path, size=1 << 16):
    """As a disk that lost some blocks leaves a file: its size and times are what they were."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(bytes(min(size, before.st_size // 4)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def copy(tiny, tmp_path):
    path = tmp_path / "copy.gguf"
    path.write_bytes(tiny.read_bytes())
    return path


def test_a_file_that_was_verified_once_is_compared_again(store, copy):
    record = msgspec.structs.replace(store.add(copy), sha256=sha256(copy), source=Source.CATALOGUE)
    outcome = verify(record)
    assert (outcome.verdict, outcome.detail) == (Verdict.SOUND, f"SHA-256 {sha256(copy)}, by what was fetched")
    zeroed(copy)
    outcome = verify(record)
    assert outcome.verdict is Verdict.DAMAGED
    assert f"should be {record.sha256}; `pinyon pull copy` fetches it again" in outcome.detail


def test_a_model_of_a_hub_is_fetched_again_by_its_repo(store, copy):
    record = msgspec.structs.replace(
        store.add(copy), sha256="0" * 64, source=Source.CATALOGUE, aliases=("copy:q4", "owner/copy:q4")
    )
    assert "`pinyon pull owner/copy:q4` fetches it again" in verify(record).detail
    copy.write_bytes(b"GGUF")
    assert verify(record).detail.endswith("; `pinyon pull owner/copy:q4` fetches it again")
    assert "fetches it again" not in verify(msgspec.structs.replace(record, source=Source.ADDED)).detail


def test_zeros_inside_a_file_are_seen_by_nobody_else(store, copy):
    zeroed(copy)
    outcome = verify(store.add(copy))
    assert (outcome.verdict, outcome.detail) == (
        Verdict.UNPROVEN,
        "header and sizes are right, but no digest is known",
    )


def test_a_file_of_the_catalogue_is_known_after_it_changed(store, copy):
    changed = msgspec.structs.replace(store.add(copy, "smollm2"), source=Source.CATALOGUE)
    assert known_digests(changed) == (KnownDigest(find("smollm2").sha256, "the catalogue"),)
    assert verify(changed).verdict is Verdict.DAMAGED
    own = msgspec.structs.replace(changed, source=Source.ADDED)
    assert known_digests(own) == (None,), "a file of the user's that has the same name"


def test_ollama_s_files_are_called_by_their_digest(store, tiny, tmp_path):
    blob = ollama_model(tmp_path / "ollama", "mine", tiny.read_bytes())
    record = store.add(blob, "mine")
    assert verify(record).detail == f"SHA-256 {sha256(tiny)}, by its name in Ollama's store"
    zeroed(blob)
    outcome = verify(record)
    assert outcome.verdict is Verdict.DAMAGED
    assert "get the file again from where it came" in outcome.detail


def test_the_hub_s_files_are_called_by_their_digest(store, tiny, tmp_path):
    snapshot = hub_file(tmp_path / "hub", "owner/repo", "m.gguf", tiny.read_bytes())
    record = store.add(snapshot)
    assert verify(record).verdict is Verdict.SOUND
    zeroed(snapshot)
    assert verify(record).verdict is Verdict.DAMAGED


def test_a_name_like_a_digest_elsewhere_says_nothing(store, tiny, tmp_path):
    path = tmp_path / ("sha256-" + "0" * 64)
    path.write_bytes(tiny.read_bytes())
    assert verify(store.add(path)).verdict is Verdict.UNPROVEN


@pytest.mark.parametrize("damaged", range(3))
def test_each_part_of_a_split_model_is_read(store, tiny, tmp_path, damaged):
    parts = split_gguf(tiny, tmp_path / "big", 3)
    record = store.add(parts[0])
    assert verify(record).verdict is Verdict.UNPROVEN
    whole = msgspec.structs.replace(record, parts_sha256=tuple(map(sha256, parts)))
    assert verify(whole).detail == "the SHA-256 of each of 3 files, by what was fetched"
    some = msgspec.structs.replace(record, parts_sha256=whole.parts_sha256[:2])
    assert verify(some).detail.endswith("no digest is known for 1 of 3 files")
    zeroed(parts[damaged], 100)
    assert parts[damaged].name in verify(whole).detail


def test_progress_counts_all_files(store, tiny, tmp_path):
    parts = split_gguf(tiny, tmp_path / "big", 3)
    record = msgspec.structs.replace(store.add(parts[0]), parts_sha256=tuple(map(sha256, parts)))
    told = []
    verify(record, told.append)
    assert told == sorted(told)
    assert told[-1] == record.size_bytes


def test_what_headers_tell_is_told(store, copy):
    record = store.add(copy)
    copy.write_bytes(copy.read_bytes()[:-1000])
    outcome = verify(record)
    assert outcome.verdict is Verdict.DAMAGED
    assert "truncated: the tensors need" in outcome.detail
    copy.unlink()
    assert "no file at" in verify(record).detail
