"""GET /health and /health/ready: always answered, and true."""

from types import SimpleNamespace

import pytest
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body

from pinyon.engine.client import EngineState


async def test_a_server_that_can_answer_is_ready(api):
    for path in ("/health", "/health/ready"):
        response = await api.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
        assert response.json() == {
            "status": "ok",
            "live": True,
            "ready": True,
            "engine": {"state": "ready", "model": "fake", "running": 0, "waiting": 0},
            "models": [{"model": "fake", "state": "ready", "running": 0, "waiting": 0, "progress": None}],
        }


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
async def test_an_engine_that_is_not_ready_is_told(api, state):
    api.server.service.engine_state, api.server.service.loaded = state, None
    for path, status in (("/health", 200), ("/health/ready", 503)):
        response = await api.get(path)
        assert response.status_code == status
        assert response.json() == {
            "status": str(state),
            "live": True,
            "ready": False,
            "engine": {"state": str(state), "model": None, "running": 0, "waiting": 0},
            "models": [],
        }


async def test_a_server_that_shuts_down_lives_but_is_not_ready(api):
    await api.server.door.drain(0)
    assert (await api.get("/health")).json()["status"] == "shutting_down"
    assert (await api.get("/health/ready")).status_code == 503


async def test_health_is_told_while_the_engine_computes_and_prompts_are_tokenised(make_api):
    api = make_api(hashed, sequence_ids=1)
    model = api.server.model
    model.unpaused.clear()
    computing = Visitor(api.server.app, CHAT, chat_body(stream=True, n=2))
    await settle()
    model.step()
    model.tokenised.clear()
    tokenising = Visitor(api.server.app, COMPLETIONS, text_body(prompt="x" * 4000))
    await settle()
    engine = (await api.get("/health")).json()["engine"]
    assert (engine["running"], engine["waiting"]) == (2, 1)
    for visitor in (computing, tokenising):
        visitor.leave()
        await visitor.ended()
    engine = (await api.get("/health")).json()["engine"]
    assert (engine["running"], engine["waiting"]) == (0, 0)


async def test_a_model_that_is_being_loaded_is_told_and_never_called_ready(api):
    service = api.server.service
    service.engine_state = EngineState.LOADING
    service.loading = (SimpleNamespace(name="other", loaded_share=0.5),)
    loading = {"model": "other", "state": "loading", "running": 0, "waiting": 0, "progress": 0.5}
    beside = (await api.get("/health/ready")).json()
    assert (beside["ready"], beside["engine"]["state"], beside["engine"]["model"]) == (True, "loading", "other")
    assert [beside["models"][0], beside["models"][1]["model"]] == [loading, "fake"]
    service.loaded = None
    alone = await api.get("/health/ready")
    assert (alone.status_code, alone.json()["status"], alone.json()["ready"]) == (503, "loading", False)
    assert alone.json()["models"] == [loading]


async def test_a_server_is_ready_with_one_model_while_it_loads_another(api):
    api.server.service.engine_state = EngineState.LOADING
    answer = await api.get("/health/ready")
    assert (answer.status_code, answer.json()["status"], answer.json()["engine"]["state"]) == (200, "ok", "loading")
