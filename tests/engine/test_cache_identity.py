"""Whose KV is whose: with any other weights, settings or namespace there is nothing to find. And how weights are told apart."""

import ctypes
import hashlib
import os
import shutil

import pytest
from kept_kv import LONG_AGO, blocks_in, files_in, kept_engine
from split_models import split_gguf
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


# R51: models of several files


def split(source, folder):
    folder.mkdir(exist_ok=True)
    return split_gguf(source, folder / "tiny", 3)


@pytest.mark.model
def test_a_split_model_answers_as_the_whole_one_and_finds_its_own_kv(model, tmp_path):
    parts, kv = split(model, tmp_path / "parts"), tmp_path / "kv"
    text = ask(parts[0], kv).text
    assert text == ask(model, None).text
    again = ask(parts[0], kv)
    assert (again.text, again.end.cache.disk) == (text, KEPT)


@pytest.mark.model
def test_split_models_with_the_same_first_part_share_nothing(model, tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    parts, others = split(model, tmp_path / "parts"), split(other, tmp_path / "others")
    shutil.copy(parts[0], others[0])
    ask(parts[0], kv := tmp_path / "kv")
    assert_nothing_is_found(others[0], kv)


@pytest.mark.model
def test_a_part_changed_in_place_finds_nothing(model, tmp_path):
    parts = split(model, tmp_path / "parts")
    others = split(write_tiny_llama(tmp_path / "other.gguf", seed=1), tmp_path / "others")
    ask(parts[0], kv := tmp_path / "kv")
    before = parts[2].stat()
    with parts[2].open("r+b") as file:
        file.write(others[2].read_bytes())
    os.utime(parts[2], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_nothing_is_found(parts[0], kv)


def test_a_split_model_has_the_identity_and_the_digest_of_all_its_parts(model, tmp_path):
    parts, memory = split(model, tmp_path / "parts"), tmp_path / "weights"
    identity = weights_digest.file_identity(parts[0])
    digest = weights_digest.weights_digest(parts[0], identity, memory, FileSystem())
    assert digest == hashlib.sha256(b"".join(hashlib.sha256(part.read_bytes()).digest() for part in parts)).digest()
    assert weights_digest.known_digest(parts[0], memory) == digest.hex()
    for part in parts:
        os.utime(part)
        assert weights_digest.file_identity(parts[0]) != identity
        identity = weights_digest.file_identity(parts[0])


@pytest.mark.parametrize(
    "name", ["tiny.gguf", "x-00001-of-00001.gguf", "x-00002-of-00003.gguf", "x-00001-of-00003.gguf"]
)
def test_a_file_that_is_only_called_a_part_is_a_whole_one(model, tmp_path, name):
    path = model.rename(tmp_path / name)
    assert weights_digest.files_of(path) == (path,)


def test_parts_are_found_as_llama_cpp_finds_them(model, tmp_path):
    parts = split(model, tmp_path / "parts [1]")
    prefix, buffer = bytes(parts[0].with_name("tiny")), ctypes.create_string_buffer(4096)
    names = []
    for number in range(3):
        native.lib.llama_split_path(buffer, len(buffer), prefix, number, 3)
        names.append(buffer.value)
    assert names == [bytes(part) for part in weights_digest.files_of(parts[0])]


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
