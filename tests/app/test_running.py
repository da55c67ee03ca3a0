"""How a server is found: server.json is private and removed, the proof is fresh, the lock has one holder."""

import hashlib
import hmac
import os
import signal
import stat
import subprocess
import sys

import msgspec
import pytest

from pinyon.app.errors import ServerError
from pinyon.app.running import (
    ServerFile,
    data_folder_held,
    is_challenge,
    key,
    proof,
    published,
    read_server,
    remove_stale,
)
from pinyon.app.settings import Folders

CHALLENGE = "ab" * 16


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture
def server():
    return ServerFile("http://127.0.0.1:8642", os.getpid(), "a nonce", "/some/token")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_proof_is_an_hmac_of_the_challenge_under_the_nonce():
    expected = hmac.new(b"a nonce", CHALLENGE.encode(), hashlib.sha256).hexdigest()
    assert proof("a nonce", CHALLENGE) == expected
    assert len({expected, proof("another", CHALLENGE), proof("a nonce", "cd" * 16), key("a nonce")}) == 4


def test_no_challenge_asks_for_the_key():
    assert is_challenge(CHALLENGE)
    assert not any(map(is_challenge, ("key", "", "ab" * 15, "ab" * 65, "AB" * 16, CHALLENGE + "\n", "٣" * 32)))


def test_a_published_server_is_found_privately_and_gone_afterwards(folders, server):
    with published(folders, server):
        assert read_server(folders) == server
        assert (mode(folders.runtime), mode(folders.server_file)) == (0o700, 0o600)
    assert not folders.server_file.exists()
    assert read_server(folders) is None


def test_another_server_s_file_is_left_alone(folders, server):
    newer = msgspec.structs.replace(server, nonce="newer")
    with published(folders, newer):
        with published(folders, server):
            folders.server_file.write_bytes(msgspec.json.encode(newer))
        assert read_server(folders) == newer


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"url": "http://x:1"}', b'{"url":"http://x:1","pid":"1","nonce":"n"}', b"\xff", b"9" * 70_000],
    ids=["empty", "half", "array", "incomplete", "wrong type", "no text", "too long"],
)
def test_a_damaged_file_is_no_server(folders, server, content):
    with published(folders, server):
        folders.server_file.write_bytes(content)
        assert read_server(folders) is None


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_use_is_no_server(folders, server, bits):
    with published(folders, server):
        folders.server_file.chmod(bits)
        assert read_server(folders) is None


def test_a_file_of_another_user_is_no_server(folders, server, monkeypatch):
    with published(folders, server):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert read_server(folders) is None
        monkeypatch.undo()
        assert read_server(folders) == server


def test_a_pipe_in_the_file_s_place_holds_nobody_up(folders):
    folders.runtime.mkdir()
    os.mkfifo(folders.server_file, 0o600)
    assert read_server(folders) is None


def test_a_server_whose_process_is_gone_is_none(folders, server):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, 0, -1):
        with published(folders, msgspec.structs.replace(server, pid=pid)):
            assert read_server(folders) is None


def test_a_runtime_folder_that_cannot_be_made_is_told(folders, server):
    folders.runtime.write_text("a file where a folder should be")
    with pytest.raises(ServerError, match="cannot be written"), published(folders, server):
        pass


def test_the_second_holder_is_told_who_the_first_is(folders, server):
    with data_folder_held(folders):
        with pytest.raises(ServerError, match="another server holds"), data_folder_held(folders):
            pass
        with (
            published(folders, server),
            pytest.raises(ServerError, match=rf"pid {os.getpid()} at http://127.0.0.1:8642 holds"),
            data_folder_held(folders),
        ):
            pass
    with data_folder_held(folders):
        pass


def test_a_killed_holder_frees_the_folder_and_its_file_is_cleaned(folders, server, tmp_path):
    script = (
        "import time; from pinyon.app.running import data_folder_held; from pinyon.app.settings import Folders\n"
        f"with data_folder_held(Folders.of_user({{'PINYON_HOME': {str(tmp_path)!r}}})): print('held', flush=True); time.sleep(60)"
    )
    folders.runtime.mkdir()
    folders.server_file.write_bytes(msgspec.json.encode(server))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ServerError, match="holds"):
            remove_stale(folders)
        assert folders.server_file.exists()
        holder.send_signal(signal.SIGKILL)
    remove_stale(folders)
    assert not folders.server_file.exists()
    remove_stale(folders)


def test_a_data_folder_that_cannot_be_used_is_told(folders):
    folders.data.write_text("a file where a folder should be")
    with pytest.raises(ServerError, match="cannot be locked"), data_folder_held(folders):
        pass
