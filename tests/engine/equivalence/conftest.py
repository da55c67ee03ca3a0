"""Tiny models, and engines that are watched."""

import pytest
from tiny_architectures import write_tiny_gemma3
from tiny_models import write_tiny_bpe
from watched_room import CONTEXT, Room

from pinyon.engine import shared_kv


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    return write_tiny_bpe(tmp_path_factory.mktemp("llama") / "m.gguf", "gpt-2", context=CONTEXT)


@pytest.fixture(scope="session")
def tiny_windowed(tmp_path_factory):
    return write_tiny_gemma3(tmp_path_factory.mktemp("windowed") / "m.gguf", window=100)


@pytest.fixture(params=["tiny_llama", "tiny_windowed"])
def tiny_model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_kv, "CELL_SHARE", 0)  # what is idle stays until its cells are needed
    rooms = []

    def make(model):
        rooms.append(Room(model, tmp_path / f"kv {len(rooms)}"))
        return rooms[-1]

    yield make
    for room in rooms:
        room.close()


@pytest.fixture
def room(make_room, tiny_llama):
    return make_room(tiny_llama)


@pytest.fixture
def any_room(make_room, tiny_model):
    return make_room(tiny_model)
