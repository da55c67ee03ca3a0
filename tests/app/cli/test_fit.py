"""`pinyon fit` as a user runs it."""

import json

import pytest
from command_line import assert_refused, pinyon
from fake_hub import FakeHub


@pytest.fixture
def nothing_free(tmp_path):
    home = tmp_path / "full"
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text("[headroom_mib]\nRAM = 1000000000\n")
    return home


def test_a_file_that_fits(tmp_path, tiny):
    done = pinyon(tmp_path / "home", "fit", tiny, "--context", 100)
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "100" in out
    assert "weights" in out
    assert "`pinyon devices --measure`" in done.stderr.decode()


def test_json_is_data(tmp_path, tiny):
    done = pinyon(tmp_path / "home", "fit", tiny, "--json", "--kv", "f16")
    (found,) = json.loads(done.stdout)
    assert (found["fits"], found["context_tokens"], found["kv_type"]) == (True, 256, "f16")
    assert done.stderr == b""


def test_a_second_model_has_room_beside_it(tmp_path, tiny):
    def shares(*options):
        done = pinyon(tmp_path / "home", "fit", "qwen2.5-coder:1.5b", "--context", 4096, *options, "--json")
        (found,) = json.loads(done.stdout)
        return found["devices"][0]["weights_bytes"], found["devices"][0]["kv_bytes"]

    alone, beside = shares(), shares("--draft", tiny)
    (small,) = json.loads(pinyon(tmp_path / "home", "fit", tiny, "--json").stdout)
    assert beside[0] == alone[0] + small["devices"][0]["weights_bytes"]
    assert beside[1] == alone[1] + 4096 * 256
    table = pinyon(tmp_path / "home", "fit", "gemma3", "--draft", "smollm2").stdout.decode()
    assert "smollm2" in table


def test_a_second_model_that_has_no_room(tmp_path, tiny):
    assert_refused(pinyon(tmp_path / "home", "fit", tiny, "--draft", "nothing"), 3, "no model named nothing")


def test_a_file_that_does_not_fit(nothing_free, tiny):
    done = pinyon(nothing_free, "fit", tiny)
    assert done.returncode == 4
    assert b"does not fit" in done.stdout
    assert "more would have to be free" in done.stderr.decode()


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_figures_are_whole_in_a_narrow_terminal(tmp_path, tiny, columns):
    done = pinyon(tmp_path / "home", "fit", tiny, COLUMNS=columns)
    row = next(line for line in done.stdout.decode().splitlines() if "GB" in line)
    assert row.split()[:3] == ["tiny", "0.0", "GB"]
    assert " 256 " in row


def test_a_context_that_loading_would_refuse(tmp_path, tiny):
    assert_refused(pinyon(tmp_path / "home", "fit", tiny, "--context", 257), 4, "this model was trained for up to 256")
    assert_refused(pinyon(tmp_path / "home", "fit", "smollm2", "--context", 8193), 4, "trained for up to 8,192")


def test_a_model_that_is_not_here(tmp_path):
    assert_refused(pinyon(tmp_path / "home", "fit", "nothing"), 3, "no model named nothing")


@pytest.mark.parametrize("path", ["./gone.gguf", "models/gone.gguf", "a/b/gone.GGUF", "~/gone", "/gone"])
def test_a_path_that_leads_nowhere_is_no_question_to_the_hub(tmp_path, path):
    with FakeHub() as hub:
        done = pinyon(tmp_path / "home", "fit", path, **hub.environment(tmp_path / "hf"))
        assert_refused(done, 3, "no file at ")
        assert hub.asked == []


def test_a_name_too_long_for_a_path(tmp_path):
    assert_refused(pinyon(tmp_path / "home", "fit", "a" * 5000), 3, "no model named aaa")


def test_all_quantisations_of_a_repository_by_one_header(tmp_path, tiny):
    content = tiny.read_bytes()
    with FakeHub() as hub:
        hub.add(
            "owner/Tiny-GGUF", {"t-Q4_K_M.gguf": content, "t-Q8_0.gguf": content + bytes(1000), "mmproj.gguf": content}
        )
        done = pinyon(tmp_path / "home", "fit", "owner/Tiny-GGUF", "--json", **hub.environment(tmp_path / "hf"))
        found = json.loads(done.stdout)
        assert [(each["name"], each["fits"], each["is_exact"]) for each in found] == [
            ("Q4_K_M", True, True),
            ("Q8_0", True, False),
        ]
        told = pinyon(tmp_path / "home", "fit", "owner/Tiny-GGUF", **hub.environment(tmp_path / "hf"))
        assert b"pinyon: Q8_0: estimated" in told.stderr
        read = {asked.path for asked in hub.asked if "resolve" in asked.path}
        assert all("Q4_K_M" in path for path in read)
        assert hub.unknown == []


def test_a_model_of_the_catalogue_needs_not_be_here(tmp_path):
    (found,) = json.loads(pinyon(tmp_path / "home", "fit", "qwen2.5-coder", "--context", 4096, "--json").stdout)
    assert (found["name"], found["quantization"], found["size_bytes"]) == ("qwen2.5-coder:0.5b", "Q4_K_M", 491_400_064)
    assert (found["fits"], found["context_tokens"], found["is_exact"]) == (True, 4096, True)


def test_a_file_of_a_catalogue_models_name_is_meant_itself(tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma3").write_bytes(tiny.read_bytes())
    (found,) = json.loads(pinyon(tmp_path / "home", "fit", "./gemma3", "--json").stdout)
    assert found["size_bytes"] == tiny.stat().st_size
