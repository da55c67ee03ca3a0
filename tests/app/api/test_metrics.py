"""GET /metrics: what is counted of every ask that ends."""

import msgspec
import pytest
from fakes import hashed
from http_asking import CHAT, COMPLETIONS, Visitor, chat_body, settle, text_body
from prometheus_client.parser import text_string_to_metric_families

from pinyon.app.api.metrics import _GAUGES, Metrics
from pinyon.engine.events import Finished, FinishReason, Timings, Usage
from pinyon.engine.meters import Meters, Vram


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
    assert found["pinyon_queue_seconds_count",] == 2


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
        "stopped": 0, "loading": 0, "ready": 1, "failed": 0,
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
    api.server.service.read_meters = lambda: measured
    found = await samples(api)
    assert found["pinyon_context_cells",] == 4096
    assert found["pinyon_context_cells_held",] == 0
    assert found["pinyon_context_cells_idle",] == engine.idle_cells > 0
    assert found["pinyon_prefill_tokens_per_second",] == engine.prefill_tokens_per_s > 0
    assert (found["pinyon_engine_resident_bytes",], found["pinyon_available_bytes",]) == (7, 8)
    assert (found["pinyon_vram_used_bytes", "CUDA0"], found["pinyon_vram_total_bytes", "CUDA0"]) == (1, 2)
    api.server.service.read_meters = lambda: None
    assert not [key for key in await samples(api) if "cells" in key[0]]


def test_each_meter_has_a_gauge():
    counted_at_the_door = {"running", "waiting"}
    assert {field for _, _, field in _GAUGES} | counted_at_the_door | {"vram"} == {*Meters.__struct_fields__}


def finished(tokens, *, choices=1, decode_s=3.0):
    return Finished((FinishReason.STOP,) * choices, Usage(5, tokens), Timings(0.25, 0.5, decode_s), 1)


@pytest.mark.parametrize(
    ("last", "count", "total_s"),
    [
        (finished(4), 1, 1.0),
        (finished(8, choices=2), 1, 1.0),
        (finished(1, decode_s=0.0), 0, 0.0),
        (finished(0, decode_s=0.0), 0, 0.0),
        (None, 0, 0.0),
    ],
)
def test_the_time_of_a_token_is_the_mean_after_the_first(last, count, total_s):
    metrics = Metrics()
    metrics.ended("stop" if last else "left", last)
    value = metrics.registry.get_sample_value
    assert value("pinyon_time_per_output_token_seconds_count") == count
    assert value("pinyon_time_per_output_token_seconds_sum") == total_s
    assert value("pinyon_time_to_first_token_seconds_sum") == (0.0 if last is None else 0.75)


async def test_servers_in_one_process_count_apart(make_api):
    one, other = make_api(), make_api()
    await one.whole(CHAT, chat_body())
    assert ("pinyon_requests_total", "stop") in await samples(one)
    assert ("pinyon_requests_total", "stop") not in await samples(other)
