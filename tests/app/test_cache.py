import json
from pathlib import Path

import pytest
from command_line import assert_refused, pinyon
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
    assert "prompt tokens were reused" in lines[0]
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
