"""`pinyon pull` and `pinyon search` as a user runs them, against a hub on this machine."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import PINYON, assert_refused, environment, pinyon
from fake_hub import FakeHub, wait_until


@pytest.fixture
def hub():
    with FakeHub() as fake:
        yield fake
    assert fake.unknown == []


@pytest.fixture
def run(hub, tmp_path):
    def command(*arguments, **variables):
        return pinyon(tmp_path / "home", *arguments, **hub.environment(tmp_path / "hf", **variables))

    return command


def listed(run):
    return [(model["name"], model["source"]) for model in json.loads(run("list", "--json").stdout)]


def test_a_model_is_pulled_with_progress_and_then_is_here(hub, run, tiny):
    hub.add("owner/Tiny-GGUF", {"t-Q8_0.gguf": tiny.read_bytes()})
    done = run("pull", "hf.co/owner/Tiny-GGUF")
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b"")
    assert "owner/Tiny-GGUF:Q8_0: 100 % of" in message
    assert message.endswith('tiny:q8_0 is here: `pinyon run tiny:q8_0 "Hello"`\n')
    assert listed(run) == [("tiny:q8_0", "hub")]
    hub.asked.clear()
    assert "tiny:q8_0 was here already" in run("pull", "owner/Tiny-GGUF:q8_0").stderr.decode()
    assert hub.asked == []


def test_an_unknown_name_leads_to_the_search(run):
    assert_refused(
        run("pull", "llama"),
        2,
        "there is no model 'llama' to pull",
        "smollm2",
        "`pinyon search llama` looks for it on the hub",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("owner/none", "the hub has no repository owner/none"),
        ("https://example.com/a/b", "is no model's address"),
        ("owner/Tiny-GGUF:Q2_K", "owner/Tiny-GGUF has no Q2_K; it has Q8_0"),
    ],
)
def test_what_cannot_be_pulled_is_one_line(hub, run, text, words):
    hub.add("owner/Tiny-GGUF", {"t-Q8_0.gguf": b"x"})
    message = assert_refused(run("pull", text), 3, words)
    assert message.count("\n") == 1


def test_offline_a_cached_model_is_used(hub, run, tiny, tmp_path):
    snapshot = tmp_path / "hf" / "hub" / "models--owner--Tiny-GGUF" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "t-Q8_0.gguf").write_bytes(tiny.read_bytes())
    message = run("pull", "owner/Tiny-GGUF:Q8_0", HF_HUB_OFFLINE="1").stderr.decode()
    assert message.startswith(f"tiny:q8_0 is here: the hub's cache has it ({snapshot / 't-Q8_0.gguf'})")
    assert hub.asked == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_pull_to_go_on_with(hub, run, tiny, tmp_path, number):
    data = tiny.read_bytes() + bytes(4 << 20)
    hub.add("owner/Tiny-GGUF", {"t-Q8_0.gguf": data})
    hub.faults.hold_after = 3 << 20  # past what is read of the header first
    command = [*PINYON, "pull", "owner/Tiny-GGUF"]
    variables = environment(tmp_path / "home", **hub.environment(tmp_path / "hf"))
    partials = Path(tmp_path, "home", "data", "models", ".partial")
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE) as process:
        wait_until(lambda: hub.held.is_set() and list(partials.glob("*.part")))
        process.send_signal(number)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()
    hub.faults.hold_after = None
    hub.release.set()
    here = next(partials.glob("*.part")).stat().st_size
    hub.asked.clear()
    assert run("pull", "owner/Tiny-GGUF").returncode == 0
    assert hub.of("cdn")[-1].range == f"bytes={here}-{len(data) - 1}"


def test_what_the_search_finds(hub, run):
    hub.add("owner/Tiny-GGUF", {}, downloads=12_345, likes=7, parameters=1_235_000_000, gated="auto")
    hub.add("o/Tiny-\x1b[2JGGUF", {}, downloads=1, tags=("gguf", "license:\x1b]52;c;x\x07"))
    done = run("search", "tiny")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == [
        "owner/Tiny-GGUF",
        "1.2",
        "B",
        "12,345",
        "downloads",
        "7",
        "likes",
        "2026-03-04",
        "apache-2.0",
        "gated",
    ]
    assert len(lines) == 2
    assert b"\x1b" not in done.stdout
    assert "`pinyon pull owner/Tiny-GGUF`" in done.stderr.decode()
    (found,) = json.loads(run("search", "tiny", "--limit", "1", "--json").stdout)
    assert found == {
        "repo_id": "owner/Tiny-GGUF", "parameters": 1_235_000_000, "downloads": 12_345, "likes": 7,
        "updated_at": "2026-03-04T05:06:07Z", "license": "apache-2.0", "is_gated": True,
    }  # fmt: skip
    nothing = run("search", "no", "such", "words")
    assert (nothing.stdout, nothing.returncode) == (b"", 0)
    assert "try fewer" in nothing.stderr.decode()
