"""Whose KV is whose: with any other weights, settings or namespace there is nothing to find. And how weights are told apart."""

import hashlib
import os
import shutil

import pytest
from kept_kv import LONG_AGO, blocks_in, files_in, kept_engine
from tiny_models import write_tiny_llama

from pinyon.engine import native, weights_digest
from pinyon.engine.config import EngineConfig
from pinyon.engine.file_system import FileSystem
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog

STRETCH = {"llama.rope.scaling.original_context_length": 210}
KEPT = len(LONG_AGO) - 1


def model_of(folder, **options):
    return write_tiny_llama(folder / "tiny.gguf", **options)


def ask(model, folder, **options):
    with kept_engine(model, folder, **options) as made:
        return made.ask(LONG_AGO)


def assert_nothing_is_found(model, folder, **options):
    """The answer is what it is without a cache, and none of it came from there."""
    with kept_engine(model, folder, **options) as made:
        text, end = made.ask(LONG_AGO)
        assert (end.usage.cached_tokens, made.imported) == (0, [])
    assert text == ask(model, None).text


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path)


@pytest.fixture
def folder(model, tmp_path):
    """A folder with what a model has computed, which it finds again."""
    folder = tmp_path / "kv"
    text = ask(model, folder).text
    again = ask(model, folder)
    assert (again.text, again.end.cache.disk) == (text, KEPT)
    return folder


# R06: another file


@pytest.mark.model
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"metadata": {"llama.rope.freq_base": 5000.0}},
        {"metadata": {"llama.attention.scale": 0.1}},
    ],
    ids=["weights", "RoPE", "a setting of the file"],
)
def test_another_file_under_the_same_name_finds_nothing(model, folder, other):
    model_of(model.parent, **other)
    assert_nothing_is_found(model, folder)


@pytest.mark.model
def test_a_file_changed_in_place_finds_nothing_though_its_size_and_times_are_the_same(model, folder):
    before, other = model.stat(), write_tiny_llama(model.with_name("other.gguf"), seed=1)
    with model.open("r+b") as file:
        file.write(other.read_bytes())
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = model.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert_nothing_is_found(model, folder)


@pytest.mark.model
def test_the_same_file_elsewhere_finds_everything(model, folder, tmp_path):
    assert ask(shutil.copy(model, tmp_path / "copy.gguf"), folder).end.cache.disk == KEPT


def test_a_digest_is_computed_once_for_a_file_as_it_is(model, tmp_path, monkeypatch):
    computed = []
    digest = weights_digest._digest
    monkeypatch.setattr(weights_digest, "_digest", lambda path: computed.append(path) or digest(path))
    memory, files = tmp_path / "weights", FileSystem()

    def digest_now():
        return weights_digest.weights_digest(model, weights_digest.file_identity(model), memory, files)

    first = digest_now()
    assert digest_now() == first
    assert len(computed) == 1
    memory.write_bytes(memory.read_bytes()[:-1])
    assert digest_now() == first
    os.utime(model)
    assert digest_now() == first
    assert len(computed) == 3, "it was read again without its memory, and when it may have changed"
    assert memory.stat().st_mode & 0o777 == 0o600


def test_a_digest_that_is_known_is_told_without_reading_the_file(model, tmp_path, monkeypatch):
    memory = tmp_path / "weights"
    assert weights_digest.known_digest(model, memory) == ""
    digest = weights_digest.weights_digest(model, weights_digest.file_identity(model), memory, FileSystem())
    monkeypatch.setattr(weights_digest, "_digest", lambda path: pytest.fail("it is read"))
    assert weights_digest.known_digest(model, memory) == digest.hex() == hashlib.sha256(model.read_bytes()).hexdigest()
    os.utime(model)
    assert weights_digest.known_digest(model, memory) == "", "it may be another file now"
    assert weights_digest.known_digest(tmp_path / "missing", memory) == ""


def test_a_file_that_changes_while_it_is_read_has_no_digest(model, tmp_path, monkeypatch):
    digest = weights_digest._digest

    def change(path):
        found = digest(path)
        with path.open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(weights_digest, "_digest", change)
    with pytest.raises(OSError, match="has changed since it was loaded"):
        weights_digest.weights_digest(model, weights_digest.file_identity(model), tmp_path / "weights", FileSystem())
    assert not (tmp_path / "weights").exists()


@pytest.mark.model
@pytest.mark.parametrize("is_known", [False, True], ids=["never read", "known"])
def test_a_file_that_was_replaced_while_it_was_loaded_is_not_taken_for_the_new_one(model, tmp_path, is_known):
    folder = tmp_path / "kv"
    folder.mkdir()
    old = weights_digest.file_identity(model)
    if is_known:
        right = weights_digest.weights_digest(model, old, folder / "weights", FileSystem())
    os.replace(write_tiny_llama(model.with_name("other.gguf"), seed=1), model)
    if is_known:
        assert weights_digest.weights_digest(model, old, folder / "weights", FileSystem()) == right
    else:
        with pytest.raises(OSError, match="has changed since it was loaded"):
            open_tier(folder, model, ("settings",), 1 << 20, old)


@pytest.mark.model
def test_a_loaded_model_tells_which_file_it_was(model, tmp_path):
    before = weights_digest.file_identity(model)
    with (tmp_path / "log").open("w") as log:
        loaded = load_engine(EngineConfig(bytes(model), 1), model, NativeLog(log))
        os.replace(write_tiny_llama(model.with_name("other.gguf"), seed=1), model)
        assert loaded.file_identity == before != weights_digest.file_identity(model)
        loaded.close()


# F3: the same file, and something else is different


@pytest.mark.model
@pytest.mark.parametrize("number", range(7))
def test_another_setting_finds_nothing(model, folder, number):
    def change(settings):
        assert len(settings) == 7
        settings[number] += " in another way"
        return settings

    assert_nothing_is_found(model, folder, changed=change)
    assert ask(model, folder).end.cache.disk == KEPT, "each has a place of its own"


@pytest.mark.model
@pytest.mark.parametrize("number", range(6))
def test_every_setting_of_the_context_is_told(model, tmp_path, monkeypatch, number):
    """The version of llama.cpp, what it is compiled for, the format of states, the types of K and V, flash attention, the window's cache."""
    with (tmp_path / "log").open("w") as log:
        loaded = load_engine(EngineConfig(bytes(model), 1), model, NativeLog(log))
        before, params = loaded.context.kv_settings, loaded.context._params
        changes = [
            lambda: monkeypatch.setattr(native.lib, "llama_version", lambda: b"b99999"),
            lambda: monkeypatch.setattr(native.lib, "llama_print_system_info", lambda: b"CPU : NEON = 1 | "),
            lambda: monkeypatch.setattr(native.lib, "LLAMA_STATE_SEQ_VERSION", 99),
            lambda: setattr(params, "type_k", 8),
            lambda: setattr(params, "flash_attn_type", 0),
            lambda: setattr(params, "swa_full", not params.swa_full),
        ]
        changes[number]()
        assert loaded.context.kv_settings != before
        loaded.close()


@pytest.mark.model
@pytest.mark.parametrize(("context", "found"), [(250, KEPT), (209, 0)], ids=["stretched as well", "not stretched"])
def test_the_size_of_the_context_counts_only_where_it_stretches_positions(tmp_path, context, found):
    model, folder = model_of(tmp_path, metadata=STRETCH), tmp_path / "kv"
    ask(model, folder)
    assert ask(model, folder, context=context).end.cache.disk == found


@pytest.mark.model
def test_another_namespace_finds_nothing(model, folder):
    with kept_engine(model, folder) as made:
        text, end = made.ask(LONG_AGO, namespace="other")
        assert end.usage.cached_tokens == 0
        assert made.ask(LONG_AGO).end.usage.cached_tokens == KEPT
        assert made.ask(LONG_AGO).text == text
    with kept_engine(model, folder) as made:
        assert made.ask(LONG_AGO, namespace="third").end.usage.cached_tokens == 0
        assert made.ask(LONG_AGO, namespace="other").end.usage.cached_tokens == KEPT


@pytest.mark.model
def test_files_in_the_folder_of_others_are_not_theirs(model, folder):
    """Somebody copies one model's blocks into the place of another's."""
    (own,) = {path.parent for path in blocks_in(folder)}
    model_of(model.parent, seed=1)
    ask(model, folder)
    (other,) = {path.parent for path in blocks_in(folder)} - {own}
    for path in other.glob("*.kv"):
        path.unlink()
    for path in own.glob("*.kv"):
        shutil.copy(path, other)
    assert_nothing_is_found(model, folder)
    kept = files_in(own)
    taken = [name for name, data in files_in(other).items() if name.endswith(".kv") and data == kept.get(name)]
    assert taken == [], "they are deleted"
