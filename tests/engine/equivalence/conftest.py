"""Tiny models, and engines that are watched."""

import pytest
from tiny_architectures import write_tiny_gemma3
from tiny_models import write_tiny_bpe
from watched_room import CONTEXT, Room

from pinyon.engine.cost_model import CostModel


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
    # What is idle stays until its cells are needed.
    monkeypatch.setattr(CostModel, "cell_s", lambda *_args: 0.0)
    monkeypatch.setattr(CostModel, "prefill_cell_s", lambda *_args: 0.0)
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
