"""GET /v1/models: what is here, what is loaded, and no word of where it lies."""

import msgspec
import pytest
from fake_service import HIDDEN_PATH, FakeStore, record_of
from tiny_models import CONTEXT

from pinyon.models.model_record import FileIdentity


@pytest.fixture
def with_tiny(api, tiny):
    record = record_of("tiny", tiny)
    api.server.service.store = FakeStore(record, record_of("fake"), record_of("gone"))
    return api


async def test_models_are_listed_with_their_contexts(with_tiny, tiny):
    with_tiny.server.model.compromises = ("a smaller context",)
    response = await with_tiny.get("/v1/models")
    assert response.status_code == 200
    document = response.json()
    assert document["object"] == "list"
    created = [entry.pop("created") for entry in document["data"]]
    assert all(isinstance(time, int) for time in created)
    same = {"object": "model", "owned_by": "pinyon"}
    memory = {
        "kv_type": "f16",
        "weights_bytes": 100,
        "mapped_bytes": 90,
        "kv_bytes": 30,
        "compute_bytes": 24,
        "cache_bytes": 1000,
        "ram_bytes": 160,
        "gpu_bytes": {},
        "compromises": ["a smaller context"],
        "taken": {"weights_bytes": 90, "kv_bytes": 31, "compute_bytes": 4},
    }
    assert document["data"] == [
        {"id": "tiny", "context_length": CONTEXT, "loaded": False, "memory": None, **same},
        {"id": "fake", "context_length": 4096, "loaded": True, "memory": memory, **same},
        {"id": "gone", "context_length": None, "loaded": False, "memory": None, **same},
    ]
    assert str(tiny.parent) not in response.text
    assert str(HIDDEN_PATH.parent) not in response.text


async def test_a_loaded_file_without_a_record_is_listed(api):
    api.server.service.store = FakeStore()
    assert [entry["id"] for entry in (await api.get("/v1/models")).json()["data"]] == ["fake"]


async def test_nothing_here_is_an_empty_list(api):
    api.server.service.store, api.server.service.loaded = FakeStore(), None
    assert (await api.get("/v1/models")).json() == {"object": "list", "data": []}


async def test_one_model_is_shown_by_its_name(with_tiny):
    listed = {entry["id"]: entry for entry in (await with_tiny.get("/v1/models")).json()["data"]}
    for name in ("tiny", "fake", "gone"):
        assert (await with_tiny.get(f"/v1/models/{name}")).json() == listed[name]


async def test_one_model_is_shown_by_an_alias_too(api, tiny):
    record = msgspec.structs.replace(record_of("tiny", tiny), aliases=("small",))
    api.server.service.store = FakeStore(record)
    assert (await api.get("/v1/models/small")).json()["id"] == "tiny"


@pytest.mark.parametrize("name", ["nobody", "a/b", "..%2f..%2fetc", "x" * 5000, "%00", "%F0%9F%AB%A0", "%ff"])
async def test_an_unknown_model_is_not_found(api, name):
    response = await api.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert len(error["message"]) < 400


async def test_a_changed_file_is_read_again(with_tiny, tiny):
    (record, *others) = with_tiny.server.service.store.records
    other = type(record)(
        **{name: getattr(record, name) for name in record.__struct_fields__} | {"checked": FileIdentity(1, 1, 1, 1)}
    )
    with_tiny.server.service.store.records = (other, *others)
    assert (await with_tiny.get("/v1/models/tiny")).json()["context_length"] == CONTEXT
