"""A server killed while it writes KV, as processes: what is on disk afterwards verifies, is found again, and is its owner's alone."""

import contextlib
import itertools
import os
import random
import signal
import stat
import threading

import httpx
import psutil
import pytest
from command_line import pinyon, serving
from served import until, worker_of

pytestmark = [pytest.mark.model, pytest.mark.skipif(os.name == "nt", reason="signals")]

WORDS = "".join(f"{word:03}," for word in range(45))


@pytest.fixture
def home(tmp_path, tiny):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text("threads = 1\n")
    pinyon(tmp_path, "add", tiny, "--name", "tiny", check=True)
    return tmp_path


def complete(server, number):
    body = {"prompt": f"{number:03}. {WORDS}", "max_tokens": 3, "temperature": 0}
    document = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30, trust_env=False).json()
    assert "choices" in document, document
    return document["choices"][0]["text"], document["pinyon"]["cache"]


def keep_busy(server, numbers):
    """Ask what was never asked before, until the server is gone."""
    with contextlib.suppress(httpx.HTTPError):
        for number in numbers:
            complete(server, number)


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_killed_server_leaves_whole_blocks_and_right_answers(home, kills):
    choose, numbers, right, found = random.Random(kills), itertools.count(100), None, 0
    for _ in range(kills):
        with serving(home, "--preload") as server:
            until(
                lambda server=server: (
                    httpx.get(f"{server.url}/health", trust_env=False).json()["engine"]["state"] == "ready"
                )
            )
            answers = [complete(server, number) for number in range(3)]
            right = right or [text for text, _ in answers]
            assert [text for text, _ in answers] == right
            found += sum(cache["disk"] for _, cache in answers)
            worker = worker_of(server)
            moment = len([*(home / "cache").rglob("*.kv")]) + choose.randrange(1, 30)
            busy = threading.Thread(target=keep_busy, args=(server, numbers))
            busy.start()
            until(lambda moment=moment: len([*(home / "cache").rglob("*.kv")]) > moment)
            until(lambda: any((home / "cache").rglob("*.new")))
            os.kill(server.pid, signal.SIGKILL)
            busy.join()
            psutil.wait_procs([worker], timeout=10)
            assert not worker.is_running(), "the worker dies with its server"
        done = pinyon(home, "cache", "verify", check=True)
        assert done.stdout.endswith(b" 0 were damaged\n"), done.stderr
        assert not done.stdout.startswith(b"0 "), "nothing had been written"
    assert found > 0, "the second server found nothing of the first one's"


def test_what_is_kept_is_its_owners_alone(home):
    """F8: whatever the user's mask allows others."""
    mask = os.umask(0)
    try:
        with serving(home, "--preload") as server:
            for number in range(3):
                complete(server, number)
            until(lambda: len([*(home / "cache").rglob("*.kv")]) > 3)
    finally:
        os.umask(mask)
    kept = [
        each
        for folder in ("cache", "state", "runtime", "data")
        for each in [home / folder, *(home / folder).rglob("*")]
    ]
    modes = {path.relative_to(home): stat.S_IMODE(path.stat().st_mode) for path in kept}
    wrong = {
        str(path): oct(mode) for path, mode in modes.items() if mode != (0o700 if (home / path).is_dir() else 0o600)
    }
    assert not wrong
    assert {path.suffix for path in modes} >= {".kv", ".db", ".json"}
