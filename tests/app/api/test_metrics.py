"""GET /metrics: what is counted of every ask that ends."""

from unittest.mock import AsyncMock

import msgspec
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body
from prometheus_client.parser import text_string_to_metric_families

from pinyon.app.api.metrics import _COUNTERS, _GAUGES, _HISTOGRAMS
from pinyon.engine.meters import Meters, Service, Vram


async def samples(api):
    response = await api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_how_they_ended(make_api):
    api = make_api(failing=[13])
    await api.whole(CHAT, chat_body())
    await api.refused(COMPLETIONS, text_body(prompt=[260]))
    await api.refused(CHAT, chat_body(messages=[{"role": "user", "content": "x" * 5000}]))
    await api.whole(CHAT, chat_body(max_tokens=1))
    await api.refused(CHAT, chat_body(), 500)
    api.server.model.unpaused.clear()
    visitor = Visitor(api.server.app, CHAT, chat_body())
    await settle()
    visitor.leave()
    await visitor.ended()
    counted = {outcome: value for (name, outcome), value in labelled(await samples(api), "pinyon_requests_total")}
    assert counted == dict.fromkeys(
        ["stop", "length", "invalid_request", "context_length_exceeded", "engine_error", "left"], 1
    )


def labelled(found, name):
    return [(key, value) for key, value in found.items() if key[0] == name]


async def test_tokens_are_counted(api):
    await api.whole(CHAT, chat_body(n=2))
    await api.whole(COMPLETIONS, text_body(max_tokens=4))
    found = await samples(api)
    assert found["pinyon_prompt_tokens_total",] == 9 + 2
    assert found["pinyon_generated_tokens_total",] == 2 * 11 + 4


async def test_what_goes_on_is_shown(make_api):
    api = make_api(hashed, sequence_ids=1)
    api.server.model.unpaused.clear()
    visitors = [Visitor(api.server.app, CHAT, chat_body(n=n)) for n in (1, 3)]
    await settle()
    api.server.model.step()
    await settle()
    found = await samples(api)
    assert (found["pinyon_answers_running",], found["pinyon_answers_waiting",]) == (1, 3)
    assert {key[1]: value for key, value in labelled(found, "pinyon_engine_state")} == {
        "stopped": 0, "loading": 0, "ready": 1, "stuck": 0, "failed": 0,
    }  # fmt: skip
    for visitor in visitors:
        visitor.leave()
        await visitor.ended()
    found = await samples(api)
    assert (found["pinyon_answers_running",], found["pinyon_answers_waiting",]) == (0, 0)


async def test_the_engine_s_meters_are_gauges_where_a_model_is_loaded(make_api):
    api = make_api(hashed)
    await api.whole(CHAT, chat_body(max_tokens=4))
    engine = api.server.model.engine.meters()
    measured = msgspec.structs.replace(engine, rss_bytes=7, available_bytes=8, vram=(Vram("CUDA0", 1, 2),))
    api.server.model.meters = AsyncMock(return_value=measured)
    found = await samples(api)
    assert found["pinyon_context_cells", "fake"] == 4096
    assert found["pinyon_context_cells_held", "fake"] == 0
    assert found["pinyon_context_cells_idle", "fake"] == engine.idle_cells > 0
    assert found["pinyon_prefill_tokens_per_second", "fake"] == engine.prefill_tokens_per_s > 0
    assert (found["pinyon_engine_resident_bytes", "fake"], found["pinyon_available_bytes", "fake"]) == (7, 8)
    assert found["pinyon_step_rows_sum", "fake"] == engine.service.step_rows.total > 0
    assert (
        found["pinyon_step_seconds_bucket", "+Inf", "fake"]
        == found["pinyon_step_seconds_count", "fake"]
        == engine.service.step_s.number
    )
    assert found["pinyon_inter_token_seconds_count", "fake"] == 3
    for name in ("queue", "time_to_first_token", "time_per_output_token"):
        assert found[f"pinyon_{name}_seconds_count", "fake"] == 1
    assert found["pinyon_step_cost_seconds", "fake", "64"] > found["pinyon_step_cost_seconds", "fake", "1"] > 0
    assert (found["pinyon_vram_used_bytes", "CUDA0"], found["pinyon_vram_total_bytes", "CUDA0"]) == (1, 2)
    api.server.model.meters = AsyncMock(return_value=None)
    assert not [key for key in await samples(api) if "cells" in key[0]]


def test_each_meter_has_a_gauge():
    counted_at_the_door = {"running", "waiting"}
    assert {field for _, _, field in _GAUGES} | counted_at_the_door | {"vram", "service", "curve", "no_drafts"} == {
        *Meters.__struct_fields__
    }
    only_in_ps = {"one_row", "eight_rows", "prompt_rows"}  # the curve tells more of what steps cost
    assert {field for _, _, field in (*_COUNTERS, *_HISTOGRAMS)} | only_in_ps == {*Service.__struct_fields__}


async def test_servers_in_one_process_count_apart(make_api):
    one, other = make_api(), make_api()
    await one.whole(CHAT, chat_body())
    assert ("pinyon_requests_total", "stop") in await samples(one)
    assert ("pinyon_requests_total", "stop") not in await samples(other)
