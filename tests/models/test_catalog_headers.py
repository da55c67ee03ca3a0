"""The headers that the package carries are those of the files."""

import pytest

from pinyon.models import catalog
from pinyon.models.catalog_headers import catalog_header, encoded
from pinyon.models.gguf_header import read_header
from pinyon.models.memory.sizes import model_sizes
from pinyon.models.stored_header import without_texts

NAMES = [entry.name for entry in catalog.CATALOG]


def entry_of(name):
    entry = catalog.find(name)
    assert entry is not None
    return entry


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_the_catalogue_has_one(name):
    entry = entry_of(name)
    header = catalog_header(entry)
    assert header.file_bytes == entry.size_bytes
    assert header.data_offset + sum(tensor.size_bytes for tensor in header.tensors) <= entry.size_bytes
    assert header.chat_template is None


@pytest.mark.model
def test_the_starters_is_that_of_its_file(smollm2):
    assert_same("smollm2", smollm2)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("name", [name for name in NAMES if name != "smollm2"])
def test_the_others_are_those_of_their_files(catalogue_model, name):
    assert_same(name, catalogue_model(name))


def assert_same(name, path):
    entry, real = entry_of(name), read_header(path)
    known = catalog_header(entry)
    assert known == without_texts(real)
    assert encoded({name: known}) == encoded({name: real})
    repacked = frozenset({"Q4_0", "Q4_K"})
    assert model_sizes((known,), repacked) == model_sizes((real,), repacked)
    assert entry.chats == (real.chat_template is not None)
