"""Files below a folder: all, each once, whatever else lies there."""

import inspect
import os
import sys

import pytest

from pinyon.models.adoption import folders


def names(findings):
    return [found.path.name for found in findings.found]


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_every_gguf_file_is_found_by_path(tmp_path):
    for name in ("b.gguf", "a/x.GGUF", "a/deep/er/y.gguf", "readme.md", "weights.bin", ".trash/z.gguf", "gguf"):
        write(tmp_path / name)
    findings = folders.find_in(tmp_path)
    assert [str(found.path.relative_to(tmp_path)) for found in findings.found] == [
        "a/deep/er/y.gguf",
        "a/x.GGUF",
        "b.gguf",
    ]
    assert findings.unusable == ()


def test_folders_may_be_nested_deeper_than_python_goes(tmp_path):
    deep = tmp_path.joinpath(*["a"] * 200)
    write(deep / "deep.gguf")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        findings = folders.find_in(tmp_path)
    finally:
        sys.setrecursionlimit(limit)
    assert names(findings) == ["deep.gguf"]


def test_links_to_folders_are_followed_but_never_in_circles(tmp_path):
    write(tmp_path / "here" / "one.gguf")
    write(tmp_path / "disk" / "two.gguf")
    (tmp_path / "here" / "disk").symlink_to(tmp_path / "disk")
    (tmp_path / "here" / "again").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(tmp_path / "here")
    (tmp_path / "here" / "self").symlink_to(tmp_path / "here" / "self")
    assert sorted(names(folders.find_in(tmp_path / "here"))) == ["one.gguf", "two.gguf"]


def test_a_broken_link_is_left_to_who_adds_it(tmp_path):
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere.gguf")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    assert names(folders.find_in(tmp_path)) == ["gone.gguf", "loop.gguf"]


def test_a_folder_that_cannot_be_read_hides_only_itself(tmp_path, monkeypatch):
    write(tmp_path / "open" / "one.gguf")
    write(tmp_path / "shut" / "two.gguf")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    findings = folders.find_in(tmp_path)
    assert names(findings) == ["one.gguf"]
    assert [unusable.reason for unusable in findings.unusable] == [f"{tmp_path}/shut cannot be read: Permission denied"]


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX")
def test_names_that_are_no_text_are_found(tmp_path):
    write(tmp_path / os.fsdecode(b"raw\xff.gguf"))
    write(tmp_path / "line\nbreak.gguf")
    assert len(folders.find_in(tmp_path).found) == 2
