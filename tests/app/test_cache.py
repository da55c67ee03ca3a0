import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from command_line import assert_refused, pinyon, serving
from tiny_models import write_tiny_llama

from pinyon.app.cli.cache import _REASONS
from pinyon.engine.cache_report import Miss

LONG = "All of this is read once, and never again. " * 4
RUN = ["run", "-m", "tiny", "--seed", "1", "--max-tokens", "9", "--no-template", "--json"]


@pytest.fixture(scope="module")
def tiny_with_room(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def home(tmp_path, tiny_with_room):
    pinyon(tmp_path, "add", tiny_with_room, check=True)
    return tmp_path


def run(home, *arguments):
    return json.loads(pinyon(home, *RUN, *arguments, check=True).stdout)


pytestmark = pytest.mark.model


def test_a_prompt_comes_back_from_disk_in_another_process(home):
    first, second = run(home, LONG), run(home, LONG)
    assert first["cached_tokens"] == 0
    assert first["cache"]["miss"] in {"new", "not_ready"}, "making the folder may take longer than a request waits"
    assert second["cache"] == {**first["cache"], "disk": second["prompt_tokens"] - 1, "miss": None}


def test_why_tells_where_two_prompts_part(home):
    run(home, f"{LONG}It is 10:31.")
    run(home, f"{LONG}It is 11:05.")
    done = pinyon(home, "cache", "why", check=True)
    lines = done.stdout.decode().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: \d+ of \d+ prompt tokens were reused", lines[0])
    assert [line.split()[0] for line in lines[2:4]] == ["known", "now"]
    note = json.loads(pinyon(home, "cache", "why", "--json", check=True).stdout)
    assert (note["report"]["miss"], note["report"]["expected"][0], note["report"]["got"][0]) == ("diverged", "0", "1")


def test_why_tells_that_another_model_has_the_same_prompt(home, tmp_path_factory):
    other = write_tiny_llama(tmp_path_factory.mktemp("models") / "other.gguf", seed=1)
    pinyon(home, "add", other, check=True)
    run(home, "Hello", "-m", "other")  # makes its folder
    run(home, LONG)
    report = run(home, LONG, "-m", "other")["cache"]
    assert (report["miss"], report["position"], report["advice"]) == ("other_model_or_settings", 0, "")
    assert b"another model file" in pinyon(home, "cache", "why", check=True).stdout
    assert run(home, LONG, "-m", "other")["cache"]["miss"] is None
    assert run(home, "Not " + LONG, "-m", "other")["cache"]["miss"] == "diverged"


def test_why_tells_what_is_too_short_for_the_disk(home):
    run(home, "Hello")  # makes the folder
    for text, is_short in (("Hello", True), (LONG, False)):
        assert run(home, text)["cache"]["miss"] == "new"
        shown = pinyon(home, "cache", "why", check=True).stdout.decode()
        assert "nothing like the rest is kept" in shown
        assert ("less than 64 tokens" in shown) == is_short


def test_every_reason_has_its_words():
    assert _REASONS.keys() == {*Miss}
    table = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert [f"`{miss}`" for miss in Miss if f"| `{miss}` |" not in table] == []


@pytest.mark.parametrize("option", ["--private", "--no-cache"])
def test_nothing_is_kept_of_what_shall_not_be(home, option):
    run(home, option, LONG)
    assert run(home, LONG)["cached_tokens"] == 0
    assert_refused(pinyon(home, "cache", "why", "nosuch"), 2, "no such request")


def test_a_deterministic_answer_takes_what_was_computed_so(home):
    first = run(home, LONG)
    answers = [run(home, "--deterministic", LONG) for _ in range(2)]
    assert [answer["text"] for answer in answers] == [first["text"]] * 2
    assert (answers[0]["cached_tokens"], answers[1]["cached_tokens"]) == (0, answers[1]["prompt_tokens"] // 64 * 64)
    assert run(home, LONG)["cached_tokens"] == first["prompt_tokens"] - 1


def test_without_room_on_disk_nothing_is_kept_there(home):
    pinyon(home, *RUN, LONG, check=True, PINYON_CACHE_DISK_MIB="0")
    assert run(home, LONG)["cached_tokens"] == 0
    done = pinyon(home, "cache", "status", PINYON_CACHE_DISK_MIB="0", check=True)
    assert b"cache_disk_mib is 0" in done.stderr


def test_what_is_damaged_is_found_and_deleted(home):
    first = run(home, LONG)
    damaged = min((home / "cache").rglob("*.kv"))
    data = bytearray(damaged.read_bytes())
    data[-40] ^= 1
    damaged.write_bytes(data)
    done = pinyon(home, "cache", "verify", check=True)
    assert damaged.name in done.stderr.decode()
    assert not damaged.exists()
    assert run(home, LONG)["text"] == first["text"]


def test_a_block_in_another_one_s_place_is_damaged(home):
    run(home, LONG)
    one, other, moved = sorted((home / "cache").rglob("*.kv"))[:3]
    one.rename(one.with_suffix(".aside"))
    other.rename(one)
    elsewhere = moved.parent.with_name("0" * 32)
    elsewhere.mkdir()
    moved.rename(elsewhere / moved.name)
    done = pinyon(home, "cache", "verify", check=True)
    assert done.stderr.decode().count("another block than its name says") == 2
    assert not one.exists()
    assert not (elsewhere / moved.name).exists()


def test_clear_deletes_what_is_old_enough(home):
    run(home, LONG)
    pinyon(home, "cache", "clear", "--older-than", "1h", check=True)
    assert run(home, LONG)["cached_tokens"] > 0
    assert_refused(pinyon(home, "cache", "clear", "--older-than", "soon"), 2, "--older-than")
    assert_refused(pinyon(home, "cache", "clear", "--model", "nope"), 3, "nope")
    pinyon(home, "cache", "clear", "--model", "tiny", check=True)
    assert [*(home / "cache").rglob("*.kv")] == []
    assert run(home, LONG)["cached_tokens"] == 0
    assert json.loads(pinyon(home, "cache", "list", "--json", check=True).stdout)[0]["blocks"] > 0


@pytest.mark.parametrize("is_served", [False, True], ids=["files", "server"])
def test_clear_deletes_all_whatever_the_clock_said(home, is_served):
    run(home, LONG)
    for path in (home / "cache").rglob("*.kv"):
        os.utime(path, (4e9, 4e9))
    with serving(home, "--model", "tiny", "--preload") if is_served else contextlib.nullcontext():
        pinyon(home, "cache", "clear", "--older-than", "0m", check=True)
        assert [*(home / "cache").rglob("*.kv")]
        pinyon(home, "cache", "clear", check=True)
        assert not [*(home / "cache").rglob("*.kv")]


def asked(server, prompt, token="none"):
    """Return the tokens of a prompt, and how many of them a server had."""
    answer = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": "tiny", "prompt": prompt, "max_tokens": 4},
        headers={"authorization": f"Bearer {token}"},
        timeout=60,
        trust_env=False,
    )
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_a_running_server_forgets_what_it_is_told_to(home, tmp_path_factory):
    pinyon(home, "add", write_tiny_llama(tmp_path_factory.mktemp("models") / "other.gguf", seed=1), check=True)
    run(home, "-m", "other", LONG)
    with serving(home, "--model", "tiny", "--preload") as server:
        tokens, cached = asked(server, LONG)
        assert cached == 0
        for option in (["--older-than", "1h"], ["--model", "other"]):
            pinyon(home, "cache", "clear", *option, check=True)
            assert asked(server, LONG) == (tokens, tokens - 1)
        own, other = json.loads(pinyon(home, "cache", "list", "--json").stdout)
        assert own["blocks"] > other["blocks"] == 0
        done = pinyon(home, "cache", "clear", check=True)
        assert re.search(rf"the server at {server.url} forgot [1-9] blocks? with", done.stderr.decode())
        assert [*(home / "cache").rglob("*.kv")] == []
        assert_refused(pinyon(home, "cache", "why"), 2, "no such request")
        assert asked(server, LONG) == (tokens, 0)
        assert asked(server, LONG) == (tokens, tokens - 1)


def test_keys_find_nothing_of_each_other_also_after_a_restart(home, tmp_path_factory):
    tokens = [f"the-token-of-client-{number}" for number in range(3)]
    file = tmp_path_factory.mktemp("outside") / "tokens"
    file.touch(0o600)
    file.write_text("\n".join(tokens))
    options = ("--token-file", str(file), "--model", "tiny", "--preload")
    with serving(home, *options) as server:
        length, cached = asked(server, LONG, tokens[0])
        assert cached == 0
        assert asked(server, LONG, tokens[1]) == (length, 0)
    with serving(home, *options) as server:
        assert asked(server, LONG, tokens[2]) == (length, 0)
        for token in tokens:
            assert asked(server, LONG, token) == (length, length - 1)
        assert run(home, LONG)["cached_tokens"] == 0  # the owner's own commands are apart, too
    kept = [path for path in home.rglob("*") if path.is_file() and path.suffix != ".gguf"]
    assert [path for path in kept if any(token.encode() in path.read_bytes() for token in tokens)] == []


def test_it_is_said_why_nothing_is_kept_on_disk(home):
    script = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True); sys.stdin.read()"
    (home / "cache" / "kv").mkdir(parents=True)
    command = [sys.executable, "-c", script, str(home / "cache" / "kv" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        words = f"another process uses {home / 'cache' / 'kv'}"
        assert run(home, "x")["why_no_disk"] == words
        assert words in pinyon(home, "cache", "clear", check=True).stderr.decode()
        with serving(home, "--model", "tiny") as server:
            assert f"Nothing computed is kept on disk: {words}." in server.banner.decode()
            assert run(home, "x")["why_no_disk"] == words
            done = pinyon(home, "cache", "status", check=True)
            assert done.stderr.decode() == f"pinyon: nothing computed is kept on disk: {words}\n"
        other.stdin.close()
    assert run(home, "x")["why_no_disk"] == ""


def test_notes_that_cannot_be_used_are_a_reason_too(home):
    run(home, LONG)
    (notes,) = (home / "cache").rglob("notes.db")
    notes.unlink()
    notes.mkdir()
    done = pinyon(home, *RUN, "--stats", LONG, check=True)
    reason = json.loads(done.stdout)["why_no_disk"]
    assert str(notes) in reason
    assert json.loads(done.stderr)["why_no_disk"] == reason
