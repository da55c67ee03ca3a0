"""A header is read once, as long as neither the file nor the code is another one."""

import pytest
from architecture_zoo import ZOO
from tiny_models import write_tiny_llama

from pinyon.app import known_sizes
from pinyon.app.fit import sizes_here
from pinyon.app.known_sizes import known_model, sizes_of
from pinyon.models.split_files import headers_of
from pinyon.models.store import Store
from pinyon.models.stored_header import without_texts


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "sizes"


def record_of(path, tmp_path):
    return Store(tmp_path / "models").resolve(str(path))


def forbid_reading(monkeypatch):
    monkeypatch.setattr(known_sizes, "headers_of", lambda _path: pytest.fail("the header is read again"))


def test_what_was_read_is_known_and_the_same(folder, tmp_path, tiny, monkeypatch):
    record = record_of(tiny, tmp_path)
    read = sizes_of(record, folder)
    assert read == sizes_here(headers_of(tiny))
    forbid_reading(monkeypatch)
    assert sizes_of(record, folder) == read


@pytest.mark.parametrize("name", sorted(ZOO))
def test_kept_headers_are_those_of_the_file(folder, tmp_path, name, monkeypatch):
    record = record_of(ZOO[name](256).write(tmp_path / "m.gguf"), tmp_path)
    headers = headers_of(record.path)
    read = known_model(record, folder)
    assert read.headers == tuple(map(without_texts, headers))
    assert read.can_chat == (headers[0].chat_template is not None)
    forbid_reading(monkeypatch)
    assert known_model(record, folder) == read


@pytest.mark.parametrize("what", ["file", "code", "damaged"])
def test_another_file_or_other_code_is_read_anew(folder, tmp_path, what, monkeypatch):
    path = write_tiny_llama(tmp_path / "m.gguf")
    sizes_of(record_of(path, tmp_path), folder)
    (place,) = folder.iterdir()
    match what:
        case "file":
            write_tiny_llama(path, metadata={"llama.context_length": 128})
        case "code":
            monkeypatch.setattr(known_sizes, "version", lambda _name: "another")
        case "damaged":
            place.write_bytes(place.read_bytes()[:-9])
    forbid_reading(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        sizes_of(record_of(path, tmp_path), folder)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path, tiny):
    (tmp_path / "file").touch()
    assert sizes_of(record_of(tiny, tmp_path), tmp_path / "file" / "sizes") == sizes_here(headers_of(tiny))
