"""Which model answers where none is named."""

import re

import pytest

from pinyon.app.default_model import default_model
from pinyon.app.settings import Settings
from pinyon.models.catalog import CATALOG
from pinyon.models.errors import ModelNotFoundError
from pinyon.models.store import Store


def test_where_there_is_none_the_catalogue_s_smallest_is_named_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("pinyon.app.default_model.CATALOG", sorted(CATALOG, key=lambda entry: -entry.size_bytes))
    small = min(CATALOG, key=lambda entry: entry.size_bytes)
    words = f"`pinyon pull {small.name}` fetches a small one ({small.size_bytes // 1_000_000} MB)"
    with pytest.raises(ModelNotFoundError, match=re.escape(words)):
        default_model(Store(tmp_path), Settings())


def test_the_settings_come_before_the_latest(tmp_path, tiny):
    store = Store(tmp_path)
    store.add(tiny, "tiny")
    assert default_model(store, Settings(model="wanted")) == "wanted"
    assert default_model(store, Settings()) == "tiny"
