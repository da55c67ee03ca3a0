"""What may be attached, what is left out, and that a fence holds whatever is in the file."""

import io
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from pinyon.app import attachments
from pinyon.app.attachments import Attachment, attached, fenced, language
from pinyon.app.errors import UsageError


def one(source, urls=False):
    (attachment,) = attached(str(source), urls=urls).attachments
    return attachment


def test_a_file_is_its_text_under_the_name_that_was_given(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes("\ufeffnaïve\n".encode())
    assert one(path) == Attachment(str(path), "naïve\n", 10)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a/b.py", "x = 1\n\n", "a/b.py\n```python\nx = 1\n```"),
        ("notes.unknown", "hi", "notes.unknown\n```\nhi\n```"),
        ("README.md", "```sh\nls\n```\n", "README.md\n````markdown\n```sh\nls\n```\n````"),
        ("a.txt", "````` and ````", "a.txt\n``````text\n````` and ````\n``````"),
        ("empty.rs", "", "empty.rs\n```rust\n\n```"),
    ],
)
def test_a_fence_names_the_language_and_is_longer_than_any_inside(name, text, expected):
    assert fenced(Attachment(name, text, len(text))) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x.ts", "typescript"), ("Makefile", "make"), ("Dockerfile", "docker"), ("x.c", "c"), ("-", ""), ("a b", "")],
)
def test_languages(name, expected):
    assert language(name) == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF: convert it first"),
        ("é".encode("utf-16"), "UTF-16: convert it"),
        (b"abc\0def", "a zero byte at offset 3"),
        (b"caf\xe9 au lait", "byte 0xe9 at offset 3 is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_with_what_it_is(tmp_path, data, words):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(UsageError, match=words):
        one(tmp_path / "file")


def test_pdf_is_a_word_like_any_other_in_a_text(tmp_path):
    (tmp_path / "a.txt").write_text("%PDF files begin so")
    assert one(tmp_path / "a.txt").text == "%PDF files begin so"


def test_what_is_too_large_is_refused_before_it_is_read_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(attachments, "MAX_BYTES", 1 << 20)
    (tmp_path / "fits").write_bytes(b"x" * (1 << 20))
    assert one(tmp_path / "fits").size_bytes == 1 << 20
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        one("/dev/zero")


def test_what_is_not_there_is_named_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="No such file") as raised:
        one(tmp_path / "not\nthere")
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="File name too long"):
        one("x" * 5000)


def test_a_folder_is_its_texts_in_the_order_of_their_names_and_tells_what_it_left_out(tmp_path):
    for name in ("b.py", "a/z.txt", "a/a.txt", ".git/config", "c/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "m.gif").write_bytes(b"GIF89a\0")
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    found = attached(str(tmp_path), urls=False)
    names = [attachment.name.removeprefix(f"{tmp_path}/") for attachment in found.attachments]
    assert names == ["b.py", "a/a.txt", "a/z.txt"]
    assert found.left_out == (f"{tmp_path}/a/m.gif (a GIF image)",)


def test_a_folder_has_limits(monkeypatch, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    monkeypatch.setattr(attachments, "MAX_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        attached(str(tmp_path), urls=False)
    monkeypatch.setattr(attachments, "MAX_FILES", 3)
    monkeypatch.setattr(attachments, "MAX_BYTES", 30)
    assert len(attached(str(tmp_path), urls=False).attachments) == 3
    monkeypatch.setattr(attachments, "MAX_BYTES", 29)
    with pytest.raises(UsageError, match="attach parts"):
        attached(str(tmp_path), urls=False)


def test_a_character_that_the_limit_cuts_does_not_make_a_file_no_text(monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text("x" * 10)
    (tmp_path / "b.txt").write_text("é" * 10)
    monkeypatch.setattr(attachments, "MAX_BYTES", 20)
    with pytest.raises(UsageError, match="attach parts"):
        attached(str(tmp_path), urls=False)
    (tmp_path / "b.txt").write_bytes(b"\0" * 20)
    assert attached(str(tmp_path), urls=False).left_out == (f"{tmp_path}/b.txt (there is a zero byte at offset 0)",)


def test_a_folder_without_text_is_no_attachment(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\0")
    with pytest.raises(UsageError, match="no text file"):
        attached(str(tmp_path), urls=False)


def test_a_dash_is_the_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped")))
    assert one("-") == Attachment("stdin", "piped", 5)


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/a.py" else 404)
        self.end_headers()
        self.wfile.write(b"x = 1")

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_url_is_fetched_only_where_that_is_allowed(site):
    with pytest.raises(UsageError, match="urls = true"):
        one(f"{site}/a.py")
    assert one(f"{site}/a.py", urls=True) == Attachment(f"{site}/a.py", "x = 1", 5)
    with pytest.raises(UsageError, match="404"):
        one(f"{site}/missing", urls=True)
