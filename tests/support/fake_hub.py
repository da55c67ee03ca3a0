"""A hub on 127.0.0.1: the routes that huggingface_hub calls, and a second server where the bytes are, with faults on demand.

A request of a client that is not one of these routes fails the test that looks at `unknown`.
"""

import contextlib
import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

_PIECE_BYTES = 256 << 10


@dataclass
class FakeFile:
    """`content` is the bytes, or a file that has them; `told_sha256` is what the hub says, whatever is true."""

    content: bytes | Path
    told_sha256: str = ""
    is_lfs: bool = True

    def __post_init__(self) -> None:
        if not self.told_sha256 and isinstance(self.content, bytes):
            self.told_sha256 = hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        if isinstance(self.content, bytes):
            yield from (self.content[at : min(at + _PIECE_BYTES, stop)] for at in range(start, stop, _PIECE_BYTES))
            return
        with self.content.open("rb") as file:
            file.seek(start)
            while start < stop and (piece := file.read(min(_PIECE_BYTES, stop - start))):
                start += len(piece)
                yield piece


@dataclass
class FakeRepo:
    files: dict[str, FakeFile]
    commit: str = "c" * 40
    downloads: int = 0
    likes: int = 0
    tags: tuple[str, ...] = ("gguf", "license:apache-2.0")
    gated: bool | str = False
    parameters: int | None = None
    token: str | None = None
    """Without it the repository does not exist."""


@dataclass
class Faults:
    """What goes wrong. The lists are used up, one entry an answer; the rest stays until it is changed."""

    cuts: list[int] = field(default_factory=list)  # an answer of the second server breaks off after so many bytes
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # of the second server, before it answers
    hub_refusal: tuple[int, dict[str, str]] | None = None
    ignores_range: bool = False
    compresses: bool = False
    is_web_page: bool = False
    shifts_range_by: int = 0
    adds_to_size: int = 0
    changes_etag: bool = False
    damages: bool = False
    hold_after: int | None = None  # an answer stops there until `release` is set


@dataclass(frozen=True)
class Asked:
    server: str
    method: str
    path: str
    range: str | None
    authorization: str | None


class FakeHub:
    """`url` is its endpoint. `asked` are the requests so far, `bytes_sent` those of files."""

    def __init__(self) -> None:
        self.repos: dict[str, FakeRepo] = {}
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.unknown: list[str] = []
        self.bytes_sent = 0
        self.held, self.release = threading.Event(), threading.Event()
        self._answers = 0
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "cdn")]
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> Self:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo_id: str, files: dict[str, bytes | FakeFile], **about: object) -> FakeRepo:
        made = {name: file if isinstance(file, FakeFile) else FakeFile(file) for name, file in files.items()}
        self.repos[repo_id] = FakeRepo(made, **about)  # type: ignore[arg-type]
        return self.repos[repo_id]

    def of(self, server: str) -> list[Asked]:
        return [one for one in self.asked if one.server == server]

    def environment(self, cache: Path, **variables: str) -> dict[str, str]:
        """The variables that lead a process here, and to no cache or token but these."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_CACHE": str(cache / "hub"),
            "HF_TOKEN": "",
            "NO_PROXY": "127.0.0.1",
            **variables,
        }

    def _handler(self, name: str) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def _answer(self) -> None:
                asked = Asked(
                    name, self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")
                )
                fake.asked.append(asked)
                with contextlib.suppress(ConnectionError):
                    (fake._hub if name == "hub" else fake._cdn)(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _hub(self, request: BaseHTTPRequestHandler) -> None:
        if self.faults.hub_refusal is not None:
            status, headers = self.faults.hub_refusal
            _send(request, status, b"{}", headers)
            return
        url = urlsplit(request.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if url.path == "/api/models":
            self._search(request, parse_qs(url.query))
        elif parts[:2] == ["api", "models"]:
            self._info(request, "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve(request, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.unknown.append(request.path)
            _send(request, 404, b"{}")

    def _repo(self, request: BaseHTTPRequestHandler, repo_id: str, revision: str) -> FakeRepo | None:
        repo = self.repos.get(repo_id)
        sent = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if sent == "wrong":
            _send(request, 401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or (repo.token is not None and sent != repo.token):
            _send(request, 401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in ("main", repo.commit):
            _send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repo
        return None

    def _search(self, request: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        words = query.get("search", [""])[0].lower()
        found = [
            (name, repo)
            for name, repo in self.repos.items()
            if words in name.lower() and set(query["filter"]) <= {*repo.tags}
        ]
        found.sort(key=lambda one: -one[1].downloads)
        body = [
            {
                "id": name,
                "downloads": repo.downloads,
                "likes": repo.likes,
                "tags": repo.tags,
                "gated": repo.gated,
                "lastModified": "2026-03-04T05:06:07.000Z",
                **({"gguf": {"total": repo.parameters}} if repo.parameters is not None else {}),
            }
            for name, repo in found[: int(query["limit"][0])]
        ]
        _send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _info(self, request: BaseHTTPRequestHandler, repo_id: str, revision: str) -> None:
        if (repo := self._repo(request, repo_id, revision)) is None:
            return
        siblings = [
            {
                "rfilename": name,
                "size": file.size,
                "blobId": "b" * 40,
                **({"lfs": {"size": file.size, "sha256": file.told_sha256, "pointerSize": 130}} if file.is_lfs else {}),
            }
            for name, file in repo.files.items()
        ]
        body = {"id": repo_id, "sha": repo.commit, "siblings": siblings, "tags": repo.tags, "gated": repo.gated}
        _send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, request: BaseHTTPRequestHandler, repo_id: str, revision: str, name: str) -> None:
        if (repo := self._repo(request, repo_id, revision)) is None:
            return
        if name not in repo.files:
            _send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        elif repo.gated and request.headers.get("Authorization") is None:
            _send(request, 401, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            file = repo.files[name]
            headers = {
                "Location": f"{self.cdn_url}/{quote(f'{repo_id}/{name}')}",
                "X-Repo-Commit": repo.commit,
                "X-Linked-Etag": f'"{file.told_sha256}"',
                "X-Linked-Size": str(file.size),
            }
            _send(request, 302, b"", headers)

    def _cdn(self, request: BaseHTTPRequestHandler) -> None:
        if self.faults.refusals:
            status, headers = self.faults.refusals.pop(0)
            _send(request, status, b"{}", headers)
            return
        owner, name, path = unquote(request.path).strip("/").split("/", 2)
        file = self.repos[f"{owner}/{name}"].files[path]
        self._answers += 1
        if self.faults.is_web_page:
            _send(request, 200, b"<html>log in</html>", {"Content-Type": "text/html; charset=utf-8"})
            return
        start, stop = (
            _range(request.headers.get("Range"), file.size) if not self.faults.ignores_range else (0, file.size)
        )
        if start >= file.size:
            _send(request, 416, b"", {"Content-Range": f"bytes */{file.size}"})
            return
        self._send_file(request, file, start, stop)

    def _send_file(self, request: BaseHTTPRequestHandler, file: FakeFile, start: int, stop: int) -> None:
        faults, total = self.faults, file.size + self.faults.adds_to_size
        request.send_response(206 if request.headers.get("Range") and not faults.ignores_range else 200)
        request.send_header("ETag", f'"{self._answers if faults.changes_etag else "same"}"')
        request.send_header("Content-Type", "application/octet-stream")
        if not faults.ignores_range:
            shifted = start + faults.shifts_range_by
            request.send_header("Content-Range", f"bytes {shifted}-{stop - 1}/{total}")
        if faults.compresses:
            body = gzip.compress(b"".join(file.pieces(start, stop)))
            request.send_header("Content-Encoding", "gzip")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
            return
        request.send_header("Content-Length", str(total if faults.ignores_range else stop - start))
        request.end_headers()
        self._write(request, file, start, stop)

    def _write(self, request: BaseHTTPRequestHandler, file: FakeFile, start: int, stop: int) -> None:
        cut = self.faults.cuts.pop(0) if self.faults.cuts else None
        end = stop if cut is None else min(start + cut, stop)
        hold = self.faults.hold_after
        if hold is not None and start <= hold < end:
            self._write_pieces(request, file, start, hold)
            self.held.set()
            self.release.wait(30)
            start = hold
        self._write_pieces(request, file, start, end)
        if end < stop:
            request.close_connection = True

    def _write_pieces(self, request: BaseHTTPRequestHandler, file: FakeFile, start: int, stop: int) -> None:
        for piece in file.pieces(start, stop):
            request.wfile.write(bytes(len(piece)) if self.faults.damages else piece)
            self.bytes_sent += len(piece)


def _range(header: str | None, size: int) -> tuple[int, int]:
    if header is None:
        return 0, size
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1 if last else size, size)


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def wait_until(condition: object, seconds: float = 10) -> None:
    """For what happens in another process or thread."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
