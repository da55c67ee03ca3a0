"""Other programs' stores: what is found there, under which names, and what is left alone."""

from pathlib import Path

import pytest
from other_stores import hub_file, ollama_model
from split_models import split_gguf
from tiny_models import write_tiny_llama

from pinyon.models.adoption import hub_cache, lmstudio, ollama, places
from pinyon.models.adoption.found import Findings, Found
from pinyon.models.store import Store

OLLAMA, LMSTUDIO, HUB = places.PLACES


# Ollama


@pytest.mark.parametrize(
    ("name", "host", "shown", "aliases"),
    [
        ("llama3.2", "registry.ollama.ai", "llama3.2:latest", ()),
        ("llama3.2:3b", "registry.ollama.ai", "llama3.2:3b", ()),
        ("someone/mine:q4", "registry.ollama.ai", "mine:q4", ("someone/mine:q4",)),
        ("bartowski/Llama-GGUF:Q4_K_M", "hf.co", "Llama-GGUF:Q4_K_M", ("hf.co/bartowski/Llama-GGUF:Q4_K_M",)),
    ],
)
def test_a_model_of_ollama_has_its_name(tmp_path, name, host, shown, aliases):
    blob = ollama_model(tmp_path, name, b"GGUF", host=host)
    assert ollama.find_in(tmp_path) == Findings((Found(blob, shown, aliases),))


def test_one_file_with_several_names_is_one_model(tmp_path):
    blob = ollama_model(tmp_path, "llama3.2:3b", b"GGUF")
    ollama_model(tmp_path, "llama3.2", b"GGUF")
    ollama_model(tmp_path, "me/llama3.2:3b", b"GGUF")
    assert ollama.find_in(tmp_path).found == (Found(blob, "llama3.2:latest", ("llama3.2:3b", "me/llama3.2:3b")),)


def test_what_is_no_model_file_is_left_alone(tmp_path):
    ollama_model(tmp_path, "clip", b"1", kind="projector")
    ollama_model(tmp_path, "tensors", b"2", kind="tensor")
    (tmp_path / "manifests" / "registry.ollama.ai" / "library" / ".DS_Store").touch()
    (tmp_path / "blobs" / "sha256-partial").touch()
    assert ollama.find_in(tmp_path) == Findings()


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b"", "no manifest"),
        (b"[]", "no manifest"),
        (
            b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}',
            "no SHA-256",
        ),
        (b'{"layers": [{"mediaType": 7}]}', "no manifest"),
        (b"\xff\xfe", "no manifest"),
        (b'{"x":' + b"[" * 100_000, "no manifest"),
    ],
)
def test_a_broken_manifest_hides_only_itself(tmp_path, manifest, reason):
    ollama_model(tmp_path, "good", b"GGUF")
    bad = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "bad" / "lat\x1best"
    bad.parent.mkdir()
    bad.write_bytes(manifest)
    findings = ollama.find_in(tmp_path)
    assert [found.name for found in findings.found] == ["good:latest"]
    (unusable,) = findings.unusable
    assert reason in unusable.reason
    assert unusable.reason.isprintable()


def test_a_missing_blob_is_told(tmp_path):
    ollama_model(tmp_path, "gone:7b", b"GGUF").unlink()
    findings = ollama.find_in(tmp_path)
    assert findings.found == ()
    assert "the file of gone:7b is missing" in findings.unusable[0].reason


def test_where_ollama_keeps_its_models(tmp_path):
    assert ollama.roots(tmp_path, {}) == (tmp_path / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"))
    assert ollama.roots(tmp_path, {"OLLAMA_MODELS": "/big"}) == (Path("/big"),)


# LM Studio


def test_models_of_lm_studio_are_also_called_by_their_repo(tmp_path):
    folder = tmp_path / "lmstudio-community" / "Qwen3-GGUF"
    folder.mkdir(parents=True)
    for name in ("Qwen3-Q4_K_M.gguf", "mmproj-Qwen3-F16.gguf", "config.json"):
        (folder / name).touch()
    (tmp_path / "loose.gguf").touch()
    assert {found.path.name: found.repo for found in lmstudio.find_in(tmp_path).found} == {
        "Qwen3-Q4_K_M.gguf": "lmstudio-community/Qwen3-GGUF",
        "loose.gguf": "",
    }


def test_where_lm_studio_keeps_its_models(tmp_path):
    usual = (tmp_path / ".lmstudio" / "models", tmp_path / ".cache" / "lm-studio" / "models")
    assert lmstudio.roots(tmp_path, {}) == usual
    (tmp_path / ".lmstudio").mkdir()
    settings = tmp_path / ".lmstudio" / "settings.json"
    settings.write_text('{"downloadsFolder": "/big/models", "language": "en"}')
    assert lmstudio.roots(tmp_path, {}) == (Path("/big/models"), usual[1])
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path}/moved\n")
    assert lmstudio.roots(tmp_path, {}) == (tmp_path / "moved" / "models", Path("/big/models"), usual[1])
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path}/.lmstudio")
    assert lmstudio.roots(tmp_path, {}) == (Path("/big/models"), usual[1])


@pytest.mark.parametrize(
    "settings",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"downloadsFolder": 7}',
        b'{"downloadsFolder": ""}',
        b'{"x": "\xff"}',
        b'{"downloadsFolder": "/a\\u0000"}',
    ],
)
def test_settings_of_lm_studio_that_name_no_folder_leave_the_usual_one(tmp_path, settings):
    (tmp_path / ".lmstudio").mkdir()
    (tmp_path / ".lmstudio" / "settings.json").write_bytes(settings)
    (tmp_path / ".lmstudio-home-pointer").write_bytes(b"/a\0b")
    assert lmstudio.roots(tmp_path, {})[0] == tmp_path / ".lmstudio" / "models"


# the hub's cache


def test_files_of_the_hub_are_taken_from_the_snapshot_of_main(tmp_path):
    hub_file(tmp_path, "owner/Repo-GGUF", "m-Q4_0.gguf", b"old", revision="aaa", is_main=False)
    hub_file(tmp_path, "owner/Repo-GGUF", "old-only.gguf", b"older", revision="aaa", is_main=False)
    new = hub_file(tmp_path, "owner/Repo-GGUF", "m-Q4_0.gguf", b"new", revision="bbb")
    hub_file(tmp_path, "owner/Repo-GGUF", "mmproj.gguf", b"eye", revision="bbb")
    hub_file(tmp_path, "owner/bert", "model.safetensors", b"x")
    (tmp_path / "datasets--owner--words").mkdir()
    findings = hub_cache.find_in(tmp_path)
    assert [found.path.name for found in findings.found] == ["m-Q4_0.gguf", "old-only.gguf"]
    assert findings.found[0] == Found(new, repo="owner/Repo-GGUF")


def test_what_else_lies_among_the_snapshots_hides_nothing(tmp_path):
    path = hub_file(tmp_path, "owner/repo", "m-Q8_0.gguf", b"GGUF")
    snapshots = tmp_path / "models--owner--repo" / "snapshots"
    (snapshots / ".DS_Store").touch()
    (snapshots / "gone").symlink_to("nowhere")
    assert hub_cache.find_in(tmp_path) == Findings((Found(path, repo="owner/repo"),))


def test_files_in_folders_of_a_repo_are_found(tmp_path):
    path = hub_file(tmp_path, "owner/repo", "Q8_0/m-Q8_0.gguf", b"GGUF")
    assert hub_cache.find_in(tmp_path).found == (Found(path, repo="owner/repo"),)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/c"}, "/hf/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/legacy"}, "/legacy"),
        ({"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": ""}, "home/.cache/huggingface/hub"),
    ],
)
def test_where_the_hub_keeps_its_cache(environment, expected):
    assert hub_cache.roots(Path("home"), environment) == (Path(expected),)


# all of them


def test_what_is_not_there_has_nothing(tmp_path):
    assert [places.find(place, tmp_path, {"OLLAMA_MODELS": str(tmp_path / "no")}) for place in places.PLACES] == [
        Findings()
    ] * 3


def test_a_place_that_may_not_be_looked_at_says_so(tmp_path, monkeypatch):
    stat = Path.stat

    def refuse(path, **options):
        if path.name == "shut":
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    findings = places.find(OLLAMA, tmp_path, {"OLLAMA_MODELS": str(tmp_path / "shut")})
    assert "shut cannot be read: Permission denied" in findings.unusable[0].reason


def test_what_is_recorded_is_not_counted_and_a_split_model_counts_once(tmp_path):
    source = write_tiny_llama(tmp_path / "whole.gguf")
    root = tmp_path / ".lmstudio" / "models" / "owner" / "repo"
    root.mkdir(parents=True)
    parts = split_gguf(source, root / "big", 3)
    (root / "x-00002-of-00002.txt").touch()
    blob = ollama_model(tmp_path / ".ollama" / "models", "mine", source.read_bytes())
    store = Store(tmp_path / "models")
    there = [places.find(place, tmp_path, {}) for place in (OLLAMA, LMSTUDIO)]
    assert [[found.path for found in places.not_recorded(each, ())] for each in there] == [[blob], [parts[0]]]
    store.add(blob)
    (tmp_path / "link.gguf").symlink_to(parts[0])
    store.add(parts[2])
    assert [places.not_recorded(each, store.list().records) for each in there] == [(), ()]


@pytest.mark.parametrize(
    "name", ["llama3.2", "LLAMA3.2:latest", "llama3.2:3b", "file.gguf", "FILE", "owner/repo", "Owner/Repo/file.gguf"]
)
def test_a_model_is_meant_by_any_of_its_names(name):
    assert places.called(Found(Path("/x/file.gguf"), "llama3.2:latest", ("llama3.2:3b",), "owner/repo"), name)
    assert not places.called(Found(Path("/x/file.gguf"), "llama3.2:latest"), "llama3")


def test_a_file_is_known_to_lie_in_a_place(tmp_path):
    snapshot = hub_file(tmp_path / "hub", "owner/repo", "m.gguf", b"GGUF")
    environment = {"HF_HUB_CACHE": str(tmp_path / "hub"), "OLLAMA_MODELS": str(tmp_path / "ollama")}
    (tmp_path / "link.gguf").symlink_to(snapshot)
    assert places.place_of(snapshot, tmp_path, environment) is HUB
    assert places.place_of(tmp_path / "link.gguf", tmp_path, environment) is HUB
    assert places.place_of(tmp_path / "ollama" / "blobs" / "sha256-0", tmp_path, environment) is OLLAMA
    assert places.place_of(tmp_path / "own.gguf", tmp_path, environment) is None


def test_looking_opens_no_model(tmp_path, monkeypatch):
    ollama_model(tmp_path / ".ollama" / "models", "mine", b"GGUF")
    hub_file(tmp_path / ".cache" / "huggingface" / "hub", "owner/repo", "m.gguf", b"GGUF")
    opened = []
    opening = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *rest, **options: opened.append(path) or opening(path, *rest, **options)
    )
    assert sum(len(places.find(place, tmp_path, {}).found) for place in (OLLAMA, HUB)) == 2
    assert {path.name for path in opened} <= {"latest", "main"}


def test_an_adopted_model_has_the_names_of_its_place(tmp_path, tiny):
    blob = ollama_model(tmp_path, "llama3.2:3b", tiny.read_bytes())
    ollama_model(tmp_path, "llama3.2", tiny.read_bytes())
    (found,) = ollama.find_in(tmp_path).found
    store = Store(tmp_path / "models")
    record = store.add(found.path, suggested=found.name, aliases=found.aliases)
    assert (record.name, record.aliases, record.path, record.sha256) == ("llama3.2", ("llama3.2:3b",), blob, None)
    assert store.resolve("llama3.2:latest") == store.resolve("llama3.2:3b") == record
