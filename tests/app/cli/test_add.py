"""`pinyon add`: a file, a folder, another program's store; what cannot be added is told with its reason."""

import os

import pytest
from command_line import assert_refused, pinyon
from other_stores import ollama_model
from split_models import split_gguf
from tiny_models import write_tiny_llama

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n"


@pytest.fixture
def add(tmp_path):
    """Run `pinyon add` for a user whose folder has nothing but what the test puts there."""

    def run(*arguments, **options):
        return pinyon(tmp_path / "pinyon", "add", *arguments, **{"HOME": str(tmp_path), "OLLAMA_MODELS": "", **options})

    return run


@pytest.mark.model
def test_a_split_model_is_run_by_whichever_part_is_named(add, tiny, tmp_path):
    """R51."""
    parts = split_gguf(tiny, tmp_path / "big", 3)
    assert add(parts[2]).stdout == b"big\n"
    asked = ("--temperature", "0", "--max-tokens", "9", "--no-template", "--private", "Hello")
    answers = [pinyon(tmp_path / "pinyon", "run", "-m", model, *asked) for model in (tiny, "big", parts[1])]
    assert [answer.returncode for answer in answers] == [0] * 3
    assert len({answer.stdout for answer in answers}) == 1
    parts[1].unlink()
    assert_refused(pinyon(tmp_path / "pinyon", "run", "-m", "big", *asked), 3, "moved or deleted", parts[1].name)


def lines(stream):
    return stream.decode().splitlines()


def test_a_file_is_added_by_its_name(add, tiny):
    done = add(tiny)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"tiny\n", b"")
    assert add(tiny, "--name", "tiny").stdout == b"tiny\n"


def test_a_folder_is_added_and_what_is_broken_listed_apart(add, tiny, tmp_path):
    folder = tmp_path / "zoo"
    (folder / "deep").mkdir(parents=True)
    whole = write_tiny_llama(folder / "whole.gguf")
    split_gguf(tiny, folder / "deep" / "big", 3)
    for part in split_gguf(tiny, folder / "half", 3)[1:2]:
        part.unlink()
    (folder / "cut.gguf").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (folder / "pointer.gguf").write_bytes(LFS)
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "back").symlink_to(folder)
    done = add(folder)
    assert (done.returncode, lines(done.stdout)) == (0, ["big", "whole"])
    told = lines(done.stderr)
    assert len(told) == 7
    assert told[0].startswith("big is added: ")
    refused = "\n".join(line for line in told if line.startswith("pinyon: not added: "))
    for reason in (
        "cut.gguf: truncated",
        "Git LFS pointer",
        "symbolic links",
        "pipe",
        "part 2 of 3 of the model is missing",
    ):
        assert reason in refused
    again = lines(add(folder).stderr)
    assert again[0].startswith("big is here already: ")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (LFS, "run `git lfs pull` in its folder"),
        (b"<html><body>sign in</body></html>", "a web page: the download needs another address or a login"),
        (b"GGUF", "truncated"),
    ],
)
def test_a_file_that_is_no_model_is_one_line_with_what_to_do(add, tmp_path, data, reason):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    assert_refused(add(path), 3, "bad.gguf", reason)


def test_what_is_not_there_is_refused(add, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(add(tmp_path / "no.gguf"), 3, "no file at")
    assert_refused(add(tmp_path / "empty"), 3, "no .gguf file below")
    assert_refused(add(), 2, "--from with one of ollama, lmstudio, hub")
    assert_refused(add(""), 2, "give the path")
    assert_refused(
        add("--from", "ollama"), 3, "Ollama's store has no models on this machine: looked in", ".ollama/models"
    )


def test_a_file_that_was_asked_for_and_fails_is_no_success(add, tiny, tmp_path):
    bad = tmp_path / "folder" / "bad.gguf"
    bad.parent.mkdir()
    bad.write_bytes(LFS)
    done = add(tiny, bad)
    assert (done.returncode, done.stdout) == (3, b"tiny\n")
    assert add(tiny, bad.parent).returncode == 0, "in a folder there may be anything"
    assert add(bad.parent).returncode == 3, "nothing was added"


def test_a_name_is_for_one_file(add, tiny, tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    write_tiny_llama(folder / "one.gguf")
    assert add(folder, "--name", "mine").stdout == b"mine\n"
    assert_refused(add(tiny, folder, "--name", "mine"), 2, "--name is for one file, and there are 2")


def test_models_of_ollama_are_added_with_their_names(add, tiny, tmp_path):
    root = tmp_path / ".ollama" / "models"
    blob = ollama_model(root, "llama3.2:3b", tiny.read_bytes())
    ollama_model(root, "someone/small:q4", write_tiny_llama(tmp_path / "x.gguf", seed=1).read_bytes())
    ollama_model(root, "broken", b"GGUF")
    assert_refused(add("--from", "ollama", "nope"), 3, "has no model named nope; it has ", "llama3.2:3b", "small:q4")
    done = add("--from", "ollama", "llama3.2:3B")
    assert (done.returncode, done.stdout) == (0, b"llama3.2:3b\n")
    done = add("--from", "ollama")
    assert sorted(lines(done.stdout)) == ["llama3.2:3b", "small:q4"]
    assert f"llama3.2:3b is here already: 0 MB, {blob}" in lines(done.stderr)
    assert b"not added: " in done.stderr
    assert blob.exists()
    shown = pinyon(tmp_path / "pinyon", "show", "someone/small:q4", HOME=str(tmp_path))
    assert lines(shown.stdout)[0] == "name         small:q4, someone/small:q4"


def test_an_adopted_file_that_vanishes_is_told(add, tiny, tmp_path):
    blob = ollama_model(tmp_path / ".ollama" / "models", "mine", tiny.read_bytes())
    assert add("--from", "ollama").stdout == b"mine\n"
    blob.unlink()
    done = pinyon(tmp_path / "pinyon", "run", "mine", "Hello", HOME=str(tmp_path))
    assert_refused(done, 3, "the file of mine was moved or deleted", "`pinyon rm mine` and `pinyon add` it")
