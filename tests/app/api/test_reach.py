"""Bind addresses, the names that go with them, and the token file."""

import os
import socket
from typing import NamedTuple

import psutil
import pytest

from pinyon.app.api import reach
from pinyon.app.errors import UsageError
from pinyon.app.limits import MAX_CLIENT_TOKENS

OPEN_TO_THE_NETWORK = "Open to everyone who can reach 192.168.1.5 on your network. The token keeps them out; nothing is encrypted on the way."
LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}


class Entry(NamedTuple):
    family: int
    address: str


@pytest.fixture
def interfaces(monkeypatch):
    found = {
        "lo": [Entry(socket.AF_INET, "127.0.0.1"), Entry(socket.AF_INET6, "::1")],
        "eth0": [
            Entry(socket.AF_INET, "192.168.1.5"),
            Entry(socket.AF_INET6, "2001:db8::5"),
            Entry(socket.AF_INET6, "fe80::1%eth0"),
            Entry(psutil.AF_LINK, "00:00:5e:00:53:01"),
        ],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "::1", "[::1]", "127.8.8.8"])
def test_loopback_needs_no_token(host):
    assert reach.is_loopback(host)
    reach.require_token(host, None)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "",
        "192.168.1.5",
        "2001:db8::5",
        "localhost.",
        "localhost.evil.test",
        "127.1",
        "::ffff:127.0.0.1",
    ],
)
def test_anything_else_is_refused_without_a_token(host, tmp_path):
    assert not reach.is_loopback(host)
    with pytest.raises(UsageError, match=r"everyone who can reach.*--token-file F"):
        reach.require_token(host, None)
    reach.require_token(host, tmp_path / "token")


@pytest.mark.parametrize(
    ("host", "more"),
    [
        ("127.0.0.1", set()),
        ("::1", set()),
        ("192.168.1.5", {"192.168.1.5"}),
        ("2001:DB8:0::5", {"[2001:db8::5]"}),
        ("fe80::1%eth0", {"[fe80::1]"}),
        ("MyBox.local", {"mybox.local"}),
        ("0.0.0.0", {"192.168.1.5", "[2001:db8::5]", "[fe80::1]"}),
        ("::", {"192.168.1.5", "[2001:db8::5]", "[fe80::1]"}),
        ("", {"192.168.1.5", "[2001:db8::5]", "[fe80::1]"}),
    ],
)
def test_the_names_of_a_server_go_with_its_address(host, more, interfaces):
    assert reach.host_names(host) == LOOPBACK | more


@pytest.mark.parametrize(
    ("host", "lines"),
    [
        ("127.0.0.1", ["http://127.0.0.1:8642", "Only programs on this machine can reach it."]),
        ("::1", ["http://[::1]:8642", "Only programs on this machine can reach it."]),
        (
            "192.168.1.5",
            [
                "http://192.168.1.5:8642",
                OPEN_TO_THE_NETWORK,
            ],
        ),
    ],
)
def test_the_banner_says_who_can_reach_the_server(host, lines):
    assert reach.describe_reach(host, 8642).splitlines() == lines


@pytest.mark.parametrize(
    ("host", "urls"),
    [
        ("0.0.0.0", ["http://127.0.0.1:80", "http://192.168.1.5:80"]),
        ("::", ["http://[2001:db8::5]:80", "http://[::1]:80"]),
        ("", ["http://127.0.0.1:80", "http://192.168.1.5:80", "http://[2001:db8::5]:80", "http://[::1]:80"]),
    ],
)
def test_the_banner_of_a_wildcard_names_each_address(host, urls, interfaces):
    *shown, sentence = reach.describe_reach(host, 80).splitlines()
    assert shown == urls
    assert "any of its networks" in sentence


def test_an_absent_token_file_is_written_for_the_owner_alone(tmp_path):
    path = tmp_path / "token"
    (token,) = reach.read_or_create_tokens(path)
    assert path.read_text() == f"{token}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(token) == 43
    assert reach.read_or_create_tokens(path) == (token,)
    assert reach.read_or_create_tokens(tmp_path / "other") != (token,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644])
def test_a_token_that_others_can_use_is_refused_with_the_command_that_helps(tmp_path, mode):
    path = tmp_path / "my token"
    path.write_text("t" * 32)
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"mode 0{mode:o}\): chmod 600 '{path}'"):
        reach.read_or_create_tokens(path)
    path.chmod(0o600)
    assert reach.read_or_create_tokens(path) == ("t" * 32,)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"short", b"t" * 15, b"t" * 1025, b"two words" * 4, b"t" * 32 + b"\nshort", b"\xc3\xa9" * 16],
)
def test_a_file_without_a_token_is_refused(tmp_path, content):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"holds no token.*delete it"):
        reach.read_or_create_tokens(path)
    assert path.read_bytes() == content


def test_each_line_holds_a_token_of_its_own(tmp_path):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(b"\n" + b"a" * 16 + b"\r\n\n" + b"b" * 1024 + b"\n" + b"a" * 16)
    assert reach.read_or_create_tokens(path) == ("a" * 16, "b" * 1024)


@pytest.mark.parametrize("length", [16, 1024])
def test_as_many_tokens_as_are_allowed_and_one_more(tmp_path, length):
    path = tmp_path / "token"
    path.touch(0o600)
    lines = [f"{number:0{length}}\r\n" for number in range(MAX_CLIENT_TOKENS)]
    path.write_bytes("".join(lines).encode())
    assert len(reach.read_or_create_tokens(path)) == MAX_CLIENT_TOKENS
    path.write_bytes("".join([*lines, "x" * length]).encode())
    with pytest.raises(UsageError, match="more than 256 tokens"):
        reach.read_or_create_tokens(path)


def test_a_line_that_is_no_token_is_named_and_not_quoted(tmp_path):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("t" * 32 + "\nmistyped secret\n")
    with pytest.raises(UsageError, match="no token in line 2") as refused:
        reach.read_or_create_tokens(path)
    assert "mistyped" not in str(refused.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        reach.read_or_create_tokens(tmp_path / "token")


def test_a_path_that_cannot_be_used_is_an_error_of_use(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="cannot be created: No such file"):
        reach.read_or_create_tokens(tmp_path / "absent" / "token")

    def denied(path, flags, *mode):
        raise FileExistsError if mode else PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        reach.read_or_create_tokens(tmp_path / "token")
