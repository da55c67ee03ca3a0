"""Headers of files on the hub: a few reads, whatever the connection and the server do, and never the weights."""

import threading
from dataclasses import replace

import pytest
from fake_hub import FakeFile

from pinyon.models.errors import (
    DownloadError,
    GgufFormatError,
    HubBusyError,
    HubConnectionError,
    ModelError,
    UnsupportedModelError,
)
from pinyon.models.gguf_header import parse_header
from pinyon.models.gguf_reader import ValueType
from pinyon.models.hub import remote_header
from pinyon.models.hub.address import Address
from pinyon.models.hub.patience import Patience
from pinyon.models.hub.remote_file import RemoteFile
from pinyon.models.hub.remote_header import remote_headers
from pinyon.models.hub.repo import chosen, read_repo

from ..gguf_files import tiny  # noqa: TID252  the same files as of the other tests of models

MODEL = tiny().encode()
LARGE = tiny(tokens=200).encode() + bytes(5_000_000)
"""A header of some kilobytes, and five megabytes after it."""


@pytest.fixture
def headers(hub, monkeypatch):
    """Read the headers of the only model of a repository with these files, in small reads."""
    monkeypatch.setattr(remote_header, "_FIRST_READ_BYTES", 1000)
    monkeypatch.setattr(remote_header, "_FIRST_READ_OF_SHARD_BYTES", 200)
    monkeypatch.setattr(remote_header, "_NEXT_READ_BYTES", 2000)

    def read(**files):
        hub.add("owner/repo", files or {"m-Q4_0.gguf": LARGE})
        repo = read_repo(Address("owner/repo"))
        hub.bytes_sent = 0
        return remote_headers(repo, chosen(repo, None))

    return read


def _shard(number: int, count: int = 3) -> bytes:
    """A part with one of the first tensors."""
    part = replace(tiny(), tensors=tiny().tensors[number : number + 1])
    part = part.with_value("split.no", ValueType.UINT16, number).with_value("split.count", ValueType.UINT16, count)
    return part.with_value("split.tensors.count", ValueType.INT32, count).encode()


def ranges_of(hub):
    return [one.range for one in hub.of("cdn")]


def test_a_header_is_read_in_growing_ranges_and_no_further(hub, headers):
    (header,) = headers()
    assert header == parse_header(LARGE, len(LARGE))
    assert ranges_of(hub)[:2] == ["bytes=0-999", "bytes=1000-2999"]
    assert header.data_offset <= hub.bytes_sent <= header.data_offset + 2000


def test_the_token_goes_to_the_hub_alone(hub, headers, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "mine")
    headers()
    assert {one.authorization for one in hub.of("hub")} == {"Bearer mine"}
    assert {one.authorization for one in hub.of("cdn")} == {None}


def test_every_shard_has_its_header_in_their_order(headers):
    shards = [_shard(number) for number in range(3)]
    read = headers(**{f"m-Q4_0-{number:05}-of-00003.gguf": shard for number, shard in enumerate(shards, start=1)})
    assert [header.tensors[0].name for header in read] == [tensor.name for tensor in tiny().tensors[:3]]
    assert [header.file_bytes for header in read] == [len(shard) for shard in shards]


def test_shards_of_two_models_are_no_model(headers):
    with pytest.raises(GgufFormatError, match="Q4_0 of owner/repo: part 2 of 2 says that it is part 3 of 3"):
        headers(**{"m-Q4_0-00001-of-00002.gguf": _shard(0, count=2), "m-Q4_0-00002-of-00002.gguf": _shard(2)})


def test_what_cannot_be_run_is_told(headers):
    with pytest.raises(UnsupportedModelError, match="Q4_0 of owner/repo: unsupported architecture 'llama9'"):
        headers(**{"m-Q4_0.gguf": tiny("llama9").encode()})


@pytest.mark.parametrize("cut", [0, 1, 17, 999])
def test_a_broken_connection_is_made_again_where_it_broke(hub, headers, cut):
    hub.faults.cuts = [cut, cut]
    (header,) = headers()
    assert header == parse_header(LARGE, len(LARGE))
    assert ranges_of(hub)[1] == f"bytes={cut}-999"


def test_a_connection_that_breaks_without_end_is_given_up(hub, headers):
    hub.faults.cuts = [0] * 1000
    with pytest.raises(HubConnectionError, match="check the network"):
        headers()
    assert len(hub.of("cdn")) == 6


def test_a_server_that_is_busy_is_asked_again(hub, headers):
    hub.faults.refusals = [(429, {"Retry-After": "0"}), (503, {}), (429, {"Retry-After": "0"})]
    assert headers() == (parse_header(LARGE, len(LARGE)),)


def test_a_wait_that_is_too_long_is_told_instead(hub, headers):
    hub.faults.refusals = [(429, {"Retry-After": "3600"})]
    with pytest.raises(HubBusyError, match="try again in 3600 s") as refusal:
        headers()
    assert refusal.value.retry_after_s == 3600


def test_a_server_that_ignores_ranges_is_left_early(hub, headers):
    hub.faults.ignores_range = True
    assert headers() == (parse_header(LARGE, len(LARGE)),)
    hub.faults.ignores_range = False


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"compresses": True}, r"the hub sent compressed bytes \(gzip\)"),
        ({"is_web_page": True}, "the hub sent a web page: a proxy or a login"),
        ({"shifts_range_by": 1}, "the hub sent other bytes than those from 0 on"),
        ({"adds_to_size": 7}, f"the hub sent a file of {len(LARGE) + 7} bytes instead of {len(LARGE)}"),
        ({"changes_etag": True}, "the hub sent another file than a moment ago"),
        ({"refusals": [(401, {})]}, "the hub wants a token for this: set HF_TOKEN"),
        ({"refusals": [(416, {"Content-Range": "bytes */5"})]}, "the hub answered with status 416"),
        ({"refusals": [(404, {"X-Error-Code": "EntryNotFound"})]}, "does not have that file any more"),
    ],
)
def test_an_answer_that_is_not_these_bytes_is_refused(hub, headers, faults, message):
    for name, value in faults.items():
        setattr(hub.faults, name, value)
    with pytest.raises(ModelError, match=message):
        headers()
    assert hub.bytes_sent < 10_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>" + bytes(3000), "m-Q4_0.gguf of owner/repo: not a GGUF file but a web page"),
        (MODEL[:100], "m-Q4_0.gguf of owner/repo: truncated"),
        (MODEL[:-100], "truncated: the tensors need"),
        (b"", "m-Q4_0.gguf of owner/repo: the file is empty"),
    ],
)
def test_what_is_no_model_is_named(headers, data, message):
    with pytest.raises(GgufFormatError, match=message):
        headers(**{"m-Q4_0.gguf": data})


def test_the_first_failure_ends_all_reads(hub, headers):
    hub.faults.refusals = [(416, {}), (429, {"Retry-After": "1"})]
    with pytest.raises(DownloadError, match="416"):
        headers(**{f"m-Q4_0-{number:05}-of-00002.gguf": MODEL for number in (1, 2)})
    assert len(hub.of("cdn")) <= 2, "who waits for a second try leaves"


def test_a_slow_connection_ends_at_the_deadline(hub):
    file = FakeFile(LARGE)
    hub.add("owner/repo", {"m-Q4_0.gguf": file})
    repo, now = read_repo(Address("owner/repo")), iter([0.0, 1.0, 2.0, 99.0])
    remote = RemoteFile(repo, repo.models[0].files[0], Patience(until=10.0, clock=lambda: next(now)))
    with pytest.raises(DownloadError, match="took too long"):
        b"".join(remote.stream(0, len(LARGE)))


def test_a_user_who_has_had_enough_is_heard(hub):
    hub.add("owner/repo", {"m-Q4_0.gguf": LARGE})
    repo, stop = read_repo(Address("owner/repo")), threading.Event()
    pieces = RemoteFile(repo, repo.models[0].files[0], Patience(cancelled=stop.is_set)).stream(0, len(LARGE))
    next(pieces)
    stop.set()
    with pytest.raises(DownloadError, match="stopped"):
        next(pieces)


def test_one_file_is_read_by_who_asks_so_that_an_interruption_ends_it_at_once(hub):
    hub.add("owner/repo", {"m-Q4_0.gguf": MODEL})
    repo = read_repo(Address("owner/repo"))
    threads = []

    def cancelled():
        threads.append(threading.current_thread())
        return False

    remote_headers(repo, chosen(repo, None), cancelled)
    assert {*threads} == {threading.current_thread()}
