"""From arguments, pipes and files to one text."""

import os
import sys
import threading

import pytest

from pinyon.app.attachments import Attachment
from pinyon.app.cli import prompt_sources
from pinyon.app.cli.prompt_sources import Given, given
from pinyon.app.errors import UsageError


@pytest.fixture
def pipe(monkeypatch):
    """The writing end of a pipe that stands for the standard input."""
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as stdin, open(writer, "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield file


def taken(words=(), files=(), pipe_is_needed=True):
    return given(words, files, urls=False, pipe_is_needed=pipe_is_needed)


def test_files_come_first_then_the_pipe_then_the_words():
    everything = Given((Attachment("a.py", "x = 1", 5), Attachment("b", "y", 1)), "piped", "the words")
    assert everything.text == "a.py\n```python\nx = 1\n```\n\nb\n```\ny\n```\n\npiped\n\nthe words"
    assert Given((), " \n", "x").text == "x"
    assert Given((), "", " ").text == ""


def test_a_pipe_is_read_to_its_end(pipe):
    pipe.write("\ufeffnaïve\n".encode())
    pipe.close()
    assert taken(["Say", "it"]) == Given((), "naïve", "Say it")


def test_a_silent_pipe_beside_a_prompt_is_left_alone_and_that_is_said(pipe, monkeypatch, capsys):
    monkeypatch.setattr(prompt_sources, "GRACE_S", 0.01)
    assert taken(["Say"]) == Given((), "", "Say")
    assert capsys.readouterr() == (
        "",
        "pinyon: nothing came through the pipe within 0.01 s, so it is left out; `-f -` waits for it\n",
    )
    assert taken(pipe_is_needed=False) == Given((), "", "")


def test_a_pipe_that_has_begun_is_read_however_long_it_takes(pipe, monkeypatch, capsys):
    monkeypatch.setattr(prompt_sources, "GRACE_S", 0.01)
    pipe.write(b"first ")
    late = threading.Timer(0.1, lambda: (pipe.write(b"last"), pipe.close()))
    late.start()
    assert taken(["Say"]).piped == "first last"
    assert capsys.readouterr().err == ""
    late.join()


@pytest.mark.parametrize("files", [[], ["-"]])
def test_a_pipe_that_is_the_prompt_is_waited_for(pipe, monkeypatch, files):
    monkeypatch.setattr(prompt_sources, "GRACE_S", 0.01)
    late = threading.Timer(0.1, lambda: (pipe.write(b"late"), pipe.close()))
    late.start()
    assert "late" in taken(["Say"] * len(files), files).text
    late.join()


def test_the_pipe_as_a_file_is_not_read_twice(pipe):
    pipe.write(b"x")
    pipe.close()
    assert taken(["Say"], ["-"]) == Given((Attachment("stdin", "x", 1),), "", "Say")


def test_bytes_that_are_no_text_are_named(pipe):
    pipe.write(b"a\xff")
    pipe.close()
    with pytest.raises(UsageError, match="0xff at offset 1"):
        taken(["Say"])
    with pytest.raises(UsageError, match="neither in the locale"):
        taken(["\udcff"])


def test_what_a_folder_leaves_out_is_told(pipe, tmp_path, capsys):
    pipe.close()
    (tmp_path / "a.txt").write_text("a")
    for number in range(12):
        (tmp_path / f"{number:02}.png").write_bytes(b"\x89PNG\0")
    assert len(taken([], [str(tmp_path)]).attachments) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"pinyon: left out of {tmp_path}: {tmp_path}/00.png (a PNG image), ")
    assert told.endswith("09.png (a PNG image) and 2 more\n")
