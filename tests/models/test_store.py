"""The models folder: names, paths, records, and what happens to files behind its back."""

import hashlib
import json
import os
import stat
import threading

import msgspec
import pytest
from split_models import split_gguf

from pinyon.models import model_record, store
from pinyon.models.catalog import find
from pinyon.models.errors import GgufFormatError, ModelFileError, ModelNotFoundError, StoreError, UnsupportedModelError
from pinyon.models.gguf_reader import ValueType
from pinyon.models.model_record import Source
from pinyon.models.store import Store

from .gguf_files import tiny

SMOLLM2 = find("smollm2")
assert SMOLLM2 is not None


@pytest.fixture
def models(tmp_path):
    return Store(tmp_path / "home" / "models")


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "Some-Model.Q4_0.gguf"
    path.write_bytes(tiny().encode())
    return path


def fetched(models: Store):
    """What a pull of SmolLM2 leaves, with a tiny model in the place of the real one."""
    path = models.models_dir / SMOLLM2.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny().encode())
    return models.adopt(SMOLLM2, path)


def test_an_empty_store_touches_nothing(models):
    assert models.list() == store.Listing((), ())
    assert not models.models_dir.exists()


def test_a_file_is_added_where_it_lies(models, model_file):
    record = models.add(model_file)
    assert (record.name, record.path, record.source) == ("some-model.q4_0", model_file, Source.ADDED)
    assert record.size_bytes == model_file.stat().st_size
    assert Store(models.models_dir).list().records == (record,)
    assert list(models.models_dir.iterdir()) == [models.models_dir / "some-model.q4_0.json"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_folders_and_records_are_private(models, model_file):
    models.add(model_file)
    (record,) = models.models_dir.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (models.models_dir.parent, models.models_dir, record)]
    assert modes == [0o700, 0o700, 0o600]


def test_a_second_look_at_the_same_file_keeps_its_name(models, model_file, tmp_path):
    record = models.add(model_file)
    link = tmp_path / "link.gguf"
    link.symlink_to(model_file)
    assert models.add(link) == record
    assert models.resolve(str(link)) == record
    with pytest.raises(StoreError, match=r"is here already, as some-model\.q4_0: `pinyon rm"):
        models.add(model_file, name="other")


def test_derived_names_are_numbered(models, tmp_path):
    names = []
    for folder in "abc":
        path = tmp_path / folder / "smollm2.gguf"
        path.parent.mkdir()
        path.write_bytes(tiny().encode())
        names.append(models.add(path).name)
    assert names == ["smollm2", "smollm2-2", "smollm2-3"]


def test_long_names_can_be_numbered(models, tmp_path):
    names = []
    for last in "abc":
        path = tmp_path / f"{'n' * 150}{last}.gguf"
        path.write_bytes(tiny().encode())
        names.append(models.add(path).name)
    assert names == ["n" * 94, f"{'n' * 94}-2", f"{'n' * 94}-3"]


def test_a_taken_name_is_refused(models, model_file, tmp_path):
    models.add(model_file, name="Mine:Small")
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny().encode())
    for name in ("mine:small", "MINE:small:latest", "mine-small"):
        with pytest.raises(StoreError, match="is taken: choose another name, or `pinyon rm"):
            models.add(other, name=name)
    assert [record.name for record in models.list().records] == ["mine:small"]


@pytest.mark.parametrize(
    "name", ["", "a/b", "../up", "a b", "a:b:c", "-rf", ".hidden", "n" * 101, "имя", "a\nb", "\udcff"]
)
def test_a_name_that_no_url_takes_is_refused(models, model_file, name):
    with pytest.raises(StoreError, match="cannot be named") as refusal:
        models.add(model_file, name=name)
    assert str(refusal.value).isprintable()


def test_two_writers_cannot_have_one_name(models, tmp_path):
    outcomes = []

    def add(number):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(tiny().encode())
        try:
            outcomes.append(models.add(path, name="contested").path)
        except StoreError:
            outcomes.append(None)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [path for path in outcomes if path]
    assert len(outcomes) == 6
    assert [record.path for record in models.list().records] == winners


def test_a_failed_write_frees_the_name(models, model_file, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_record, "write_atomically", full)
    with pytest.raises(StoreError, match="No space left on device"):
        models.add(model_file)
    assert list(models.models_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "smollm2:latest", "smollm2:135m", "SMOLLM2:135M:latest"])
def test_a_fetched_model_is_found_by_all_its_names(models, name):
    record = fetched(models)
    assert models.resolve(name) == record
    assert (record.source, record.sha256) == (Source.CATALOGUE, SMOLLM2.sha256)


def test_a_second_pull_replaces_the_record(models):
    first = fetched(models)
    (models.models_dir / SMOLLM2.file_name).unlink()
    second = fetched(models)
    assert second.checked != first.checked
    assert models.list().records == (second,)


def test_a_pull_does_not_take_the_users_name(models, model_file):
    models.add(model_file, name="smollm2")
    with pytest.raises(StoreError, match=r"smollm2 is taken by .*Some-Model"):
        fetched(models)


def test_an_unknown_name_says_what_to_do(models):
    with pytest.raises(ModelNotFoundError, match=r"`pinyon pull smollm2` fetches it \(98,362,432 bytes\)"):
        models.resolve("SmolLM2:135m")
    with pytest.raises(ModelNotFoundError, match="no model named nonsense: `pinyon list`"):
        models.resolve("nonsense")
    with pytest.raises(ModelNotFoundError, match="no file at /no/such"):
        models.resolve("/no/such/file.gguf")
    with pytest.raises(ModelNotFoundError):
        models.resolve("n" * 5000)


@pytest.mark.parametrize("path", ["nul\0.gguf", "\ud800.gguf", "~nobody-of-that-name/x.gguf", "/", ".gguf"])
def test_a_path_that_cannot_be_is_refused(models, model_file, path):
    models.add(model_file)
    with pytest.raises((ModelNotFoundError, ModelFileError)) as refusal:
        models.resolve(path)
    assert str(refusal.value).isprintable()


def test_a_path_needs_no_record(models, model_file, monkeypatch):
    monkeypatch.chdir(model_file.parent)
    monkeypatch.setenv("HOME", str(model_file.parent))
    for spelling in (str(model_file), model_file.name, f"./{model_file.name}", f"~/{model_file.name}"):
        record = models.resolve(spelling)
        assert (record.source, record.name, record.path.name) == (Source.PATH, "some-model.q4_0", model_file.name)
        assert record.path.is_absolute()
        assert models.ensure_runnable(record) == record
    assert not models.models_dir.exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Модели b'\"[x]%20\u00e9.gguf", "b-x-20e"),
        ("Модели b'\"[x]%20e\u0301.gguf", "b-x-20e"),
        ("-rf.gguf", "rf"),
        ("имя.gguf", "tiny-model"),
        ("trailing..gguf", "trailing"),
        (os.fsdecode(b"raw\xff\xfe.gguf"), "raw"),
        ("line\nbreak.gguf", "line-break"),
    ],
)
def test_odd_file_names_get_stable_ids(models, tmp_path, name, expected):
    path = tmp_path / name
    path.write_bytes(tiny().encode())
    record = models.add(path)
    assert record.name == expected
    assert models.resolve(expected).path == path
    assert models.resolve(str(path)) == record
    assert json.loads((models.models_dir / f"{expected}.json").read_text())["name"] == expected


def test_a_name_of_nothing_but_foreign_letters_is_a_digest(models, tmp_path):
    path = tmp_path / "имя.gguf"
    path.write_bytes(tiny().with_value("general.name", ValueType.STRING, "имя").encode())
    assert models.add(path).name == f"model-{hashlib.sha256('имя'.encode()).hexdigest()[:8]}"


def test_an_unchanged_file_is_not_read_again(models, model_file, monkeypatch):
    record = models.add(model_file)
    monkeypatch.setattr(store, "model_files", lambda _: pytest.fail("read again"))
    assert models.ensure_runnable(models.resolve(record.name)) == record


def test_a_changed_file_is_checked_again_and_remembered(models):
    record = fetched(models)
    record.path.write_bytes(tiny(tokens=7).encode())
    renewed = models.ensure_runnable(record)
    assert renewed.checked != record.checked
    assert renewed.sha256 is None
    assert models.resolve(record.name) == renewed


def test_a_touched_copy_of_the_same_age_keeps_its_digest(models):
    record = fetched(models)
    copy = record.path.with_suffix(".copy")
    copy.write_bytes(record.path.read_bytes())
    os.utime(copy, ns=(record.checked.mtime_ns, record.checked.mtime_ns))
    copy.replace(record.path)
    assert models.ensure_runnable(record).sha256 == SMOLLM2.sha256


def test_a_file_that_went_bad_is_refused(models, model_file):
    record = models.add(model_file)
    model_file.write_bytes(tiny().encode()[:-200])
    with pytest.raises(GgufFormatError, match="truncated"):
        models.ensure_runnable(record)


def test_a_file_that_is_gone_says_so(models, model_file):
    added, pulled = models.add(model_file), fetched(models)
    model_file.rename(model_file.with_name("elsewhere.gguf"))
    pulled.path.unlink()
    with pytest.raises(ModelNotFoundError, match=r"moved or deleted.*`pinyon add` it from where it is now"):
        models.ensure_runnable(added)
    with pytest.raises(ModelNotFoundError, match=r"moved or deleted.*`pinyon pull smollm2`"):
        models.ensure_runnable(pulled)
    assert len(models.list().records) == 2


def test_what_cannot_run_is_not_added(models, tmp_path):
    adapter = tmp_path / "lora.gguf"
    adapter.write_bytes(tiny().with_value("general.type", ValueType.STRING, "adapter").encode())
    with pytest.raises(UnsupportedModelError, match=r"lora\.gguf: an adapter"):
        models.add(adapter)
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    with pytest.raises(ModelFileError, match="symbolic links"):
        models.add(loop)
    with pytest.raises(ModelFileError, match="is a folder"):
        models.resolve(str(tmp_path))
    assert models.list().records == ()


BROKEN = {
    "empty": b"",
    "cut": b'{"name": "cu',
    "not-utf8": b'{"name": "\xff"}',
    "other-fields": b'{"name": "other-fields", "colour": "red"}',
    "list": b"[]",
}


def test_a_broken_record_hides_only_itself(models, model_file):
    record = models.add(model_file)
    for name, data in BROKEN.items():
        (models.models_dir / f"{name}.json").write_bytes(data)
    whole = (models.models_dir / f"{record.name}.json").read_text()
    (models.models_dir / "renamed.json").write_text(whole)
    (models.models_dir / "bad-path.json").write_text(whole.replace(record.name, "bad-path").replace("file:///", "//"))
    (models.models_dir / "folder.json").mkdir()
    listing = models.list()
    assert listing.records == (record,)
    assert {broken.name for broken in listing.broken} == {*BROKEN, "renamed", "bad-path", "folder"}
    assert all(broken.reason.isprintable() and len(broken.reason) > 20 for broken in listing.broken)
    assert models.resolve(record.name) == record
    with pytest.raises(StoreError, match=r"cut\.json is damaged: .*`pinyon rm cut` clears it"):
        models.resolve("cut")
    assert models.remove("cut").deleted == ()
    assert "cut" not in {broken.name for broken in models.list().broken}


def test_removal_deletes_what_was_fetched_and_forgets_what_was_added(models, model_file):
    added, pulled = models.add(model_file), fetched(models)
    inside = models.models_dir / "mine.gguf"
    inside.write_bytes(tiny().encode())
    models.add(inside)
    assert models.remove(added.name).deleted == ()
    assert models.remove("smollm2:135m").deleted == (pulled.path,)
    assert models.remove("mine").deleted == ()
    assert model_file.exists()
    assert inside.exists()
    assert not pulled.path.exists()
    assert models.list() == store.Listing((), ())
    with pytest.raises(ModelNotFoundError, match="`pinyon list`"):
        models.remove(added.name)


def test_a_model_whose_file_is_gone_can_be_removed(models):
    fetched(models).path.unlink()
    models.remove("smollm2")
    assert models.list().records == ()


def test_a_renewal_that_cannot_be_recorded_does_not_stop_a_run(models, model_file, monkeypatch):
    record = models.add(model_file)
    model_file.write_bytes(tiny(tokens=6).encode())

    def read_only(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(model_record, "write_atomically", read_only)
    assert models.ensure_runnable(record).checked != record.checked
    assert models.resolve(record.name) == record


# R51: split models


@pytest.fixture
def parts(model_file, tmp_path):
    (tmp_path / "parts").mkdir()
    return split_gguf(model_file, tmp_path / "parts" / "Big.Q4_0", 3)


@pytest.mark.parametrize("named", range(3))
def test_a_split_model_is_one_record_whichever_part_is_named(models, parts, named):
    record = models.add(parts[named])
    assert (record.name, record.path, record.parts) == ("big.q4_0", parts[0], parts[1:])
    assert record.size_bytes == sum(path.stat().st_size for path in parts)
    assert models.list().records == (record,)
    assert [models.resolve(str(path)) for path in parts] == [record] * 3
    assert [models.add(path) for path in parts] == [record] * 3


def test_a_split_model_needs_no_record(models, parts):
    record = models.resolve(str(parts[1]))
    assert (record.source, record.paths) == (Source.PATH, parts)
    assert models.ensure_runnable(record) == record


def test_every_part_is_looked_at_before_a_run(models, parts, monkeypatch):
    record = models.add(parts[0])
    os.utime(parts[2], ns=(1, 1))
    renewed = models.ensure_runnable(record)
    assert renewed.parts_checked[1].mtime_ns == 1
    assert models.resolve("big.q4_0") == renewed
    parts[1].write_bytes(parts[1].read_bytes()[:-200])
    with pytest.raises(GgufFormatError, match=r"Big\.Q4_0-00002-of-00003\.gguf: truncated"):
        models.ensure_runnable(renewed)
    parts[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"moved or deleted: .*-00002-of-00003\.gguf is not there any more"):
        models.ensure_runnable(renewed)


def test_a_split_model_that_became_another_is_renewed_with_its_parts(models, parts, model_file):
    record = models.add(parts[0])
    parts[0].write_bytes(model_file.read_bytes())
    renewed = models.ensure_runnable(record)
    assert (renewed.paths, len(renewed.identities)) == (parts[:1], 1)


def test_a_digest_of_parts_goes_with_any_of_them(models, parts):
    record = msgspec.structs.replace(models.add(parts[0]), parts_sha256=("00", "11", "22"))
    assert models.ensure_runnable(record).parts_sha256 == ("00", "11", "22")
    parts[2].write_bytes(parts[2].read_bytes())
    os.utime(parts[2], ns=(1, 1))
    assert models.ensure_runnable(record).parts_sha256 == ()


def test_all_parts_of_what_was_fetched_are_deleted(models, model_file):
    folder = models.models_dir / "hub" / "owner" / "repo"
    folder.mkdir(parents=True)
    (models.models_dir / "hub" / "other").mkdir()
    parts = split_gguf(model_file, folder / "big", 3)
    fetched = msgspec.structs.replace(models.add(parts[0]), source=Source.CATALOGUE)
    model_record.write_record(models.models_dir / "big.json", fetched)
    assert models.remove("big").deleted == parts
    assert [path.name for path in models.models_dir.rglob("*")] == ["hub", "other"]


def test_what_lies_outside_of_the_folder_is_not_deleted(models, parts):
    fetched = msgspec.structs.replace(
        models.add(parts[0]), source=Source.CATALOGUE, path=models.models_dir / ".." / ".." / "parts" / parts[0].name
    )
    model_record.write_record(models.models_dir / "big.q4_0.json", fetched)
    assert models.remove("big.q4_0").deleted == ()
    assert all(path.exists() for path in parts)


def test_a_file_that_another_record_has_stays(models):
    pulled = fetched(models)
    other = msgspec.structs.replace(pulled, name="mine", aliases=(), source=Source.ADDED)
    model_record.write_record(models.models_dir / "mine.json", other)
    assert models.sharers_of(pulled) == ("mine",)
    assert models.remove("smollm2").deleted == ()
    assert pulled.path.exists()
    assert models.list().records == (other,)


# names that others gave


def test_aliases_that_cannot_be_written_are_left_out(models, model_file):
    added = models.add(model_file, suggested="mine", aliases=("o/mine:q4", "o/\udcff:q4", "o/\x1b[2J:q4"))
    assert models.resolve(added.name).aliases == ("o/mine:q4",)


def test_an_interruption_leaves_no_record_that_is_damaged(models, model_file, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.add(model_file)
    assert models.list() == store.Listing((), ())


def test_a_suggested_name_is_numbered_and_taken_aliases_are_left_out(models, model_file, tmp_path):
    first = models.add(model_file, suggested="llama3.2", aliases=("llama3.2:3b", "LLAMA3.2:latest"))
    assert (first.name, first.aliases) == ("llama3.2", ("llama3.2:3b",))
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny().encode())
    second = models.add(other, suggested="llama3.2", aliases=("llama3.2:3b", "hf.co/me/other:q4"))
    assert (second.name, second.aliases) == ("llama3.2-2", ("hf.co/me/other:q4",))
    assert models.resolve("llama3.2:3b") == first
    assert models.resolve("hf.co/me/other:q4") == second


def test_a_name_that_no_model_can_have_is_made_one(models, model_file):
    assert models.add(model_file, suggested="Someone/Model:Q4").name == "someone-model-q4"
