"""GET /metrics: counts and times of this server, for Prometheus."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from pinyon.app.api.door import Door, door_of
from pinyon.engine.client import EngineState
from pinyon.engine.events import Finished
from pinyon.engine.meters import Meters
from pinyon.engine.tally import Counts

router = APIRouter()


class Metrics:
    """What is counted of every ask. One registry a server, so that several in one process stay apart."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("pinyon_requests", "Requests that ended.", ["outcome"], registry=registry)
        self._prompt = Counter("pinyon_prompt_tokens", "Prompt tokens of finished requests.", registry=registry)
        self._generated = Counter("pinyon_generated_tokens", "Tokens of finished answers.", registry=registry)

    def ended(self, outcome: str, finished: Finished | None) -> None:
        """As door.Meters."""
        self._requests.labels(outcome).inc()
        if finished is None:
            return
        self._prompt.inc(finished.usage.prompt_tokens)
        self._generated.inc(finished.usage.completion_tokens)


class DoorCollector(Collector):
    """Gauges of what a door is doing, read when they are asked for."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterator[Metric]:
        door = self._door
        yield GaugeMetricFamily("pinyon_answers_running", "Answers that are being computed.", door.running)
        yield GaugeMetricFamily("pinyon_answers_waiting", "Answers of which nothing is computed yet.", door.waiting)
        states = GaugeMetricFamily("pinyon_engine_state", "1 for the engine's state.", labels=["state"])
        for state in EngineState:
            states.add_metric([state], float(door.engine_state is state))
        yield states


_GAUGES: Final = (
    ("pinyon_context_cells", "Tokens that the context has room for.", "cells"),
    ("pinyon_context_cells_held", "Those that requests hold.", "held_cells"),
    ("pinyon_context_cells_idle", "Those that were left for others.", "idle_cells"),
    ("pinyon_kv_ram_bytes", "KV kept in memory beside the context.", "kv_ram_bytes"),
    ("pinyon_kv_disk_bytes", "KV kept on disk.", "kv_disk_bytes"),
    ("pinyon_prefill_tokens_per_second", "Speed of computing prompts, 0 while unknown.", "prefill_tokens_per_s"),
    ("pinyon_restore_bytes_per_second", "Speed of bringing KV back, 0 while unknown.", "restore_bytes_per_s"),
    ("pinyon_engine_resident_bytes", "Memory of the engine process.", "rss_bytes"),
    ("pinyon_available_bytes", "Memory that this machine could still give to programs.", "available_bytes"),
)


_COUNTERS: Final = (
    ("pinyon_preempted", "Sequences that gave their cells to others, to go on later.", "preempted"),
    ("pinyon_cancelled", "Requests that were cancelled in the engine.", "cancelled"),
    ("pinyon_refused", "Requests that were refused since there was too much to do.", "refused"),
    ("pinyon_first_token_in_time", "First tokens within the request's deadline.", "in_time"),
    ("pinyon_first_token_late", "First tokens after the request's deadline.", "late"),
    ("pinyon_draft_steps", "Steps of answers that could have drafted tokens.", "draft_steps"),
    ("pinyon_drafted_tokens", "Tokens that were drafted in them.", "drafted"),
    ("pinyon_accepted_tokens", "Drafted tokens that came true.", "accepted"),
    ("pinyon_slow_steps", "Steps that took far longer than predicted.", "slow_steps"),
)
_HISTOGRAMS: Final = (
    ("pinyon_queue_seconds", "Wait before the prompt was begun.", "queue_s"),
    ("pinyon_time_to_first_token_seconds", "From acceptance to the first token.", "ttft_s"),
    ("pinyon_time_per_output_token_seconds", "Mean time of a token after the first, one value an answer.", "tpot_s"),
    ("pinyon_step_seconds", "How long steps took.", "step_s"),
    ("pinyon_step_rows", "How many tokens steps computed.", "step_rows"),
    ("pinyon_inter_token_seconds", "From one token of an answer to the next.", "token_s"),
)


class EngineCollector(Collector):
    """Gauges of what engines hold and do, by the names of their models; none where nothing is loaded."""

    def __init__(self, meters: Mapping[str, Meters]) -> None:
        self._meters = meters

    def collect(self) -> Iterator[Metric]:
        if not self._meters:
            return
        for name, text, field in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model, meters in self._meters.items():
                gauge.add_metric([model], getattr(meters, field))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model, meters in self._meters.items():
                counter.add_metric([model], getattr(meters.service, field))
            yield counter
        for name, text, field in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, text, labels=["model"])
            for model, meters in self._meters.items():
                _add_counts(histogram, model, getattr(meters.service, field))
            yield histogram
        yield from self._step_costs()
        yield from self._video_memory()

    def _step_costs(self) -> Iterator[Metric]:
        labels = ["model", "rows"]
        base = GaugeMetricFamily("pinyon_step_cost_seconds", "What a step of so many rows takes here.", labels=labels)
        span = GaugeMetricFamily(
            "pinyon_step_cost_seconds_per_kilocell", "What it takes more for 1,000 cells in use.", labels=labels
        )
        for model, meters in self._meters.items():
            if (curve := meters.curve) is not None:
                for rows, base_s, span_s in zip(curve.rows, curve.base_s, curve.span_s, strict=True):
                    base.add_metric([model, str(rows)], base_s)
                    span.add_metric([model, str(rows)], span_s)
        yield base
        yield span

    def _video_memory(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("pinyon_vram_used_bytes", "Memory in use of a GPU.", labels=["device"])
        total = GaugeMetricFamily("pinyon_vram_total_bytes", "Memory of a GPU.", labels=["device"])
        for each in {each.device: each for meters in self._meters.values() for each in meters.vram}.values():
            used.add_metric([each.device], each.used_bytes)
            total.add_metric([each.device], each.total_bytes)
        yield used
        yield total


def _add_counts(histogram: HistogramMetricFamily, model: str, counted: Counts) -> None:
    below, buckets = 0, []
    for bound, count in zip((*map(str, counted.bounds), "+Inf"), counted.counts, strict=True):
        below += count
        buckets.append((bound, below))
    histogram.add_metric([model], buckets=buckets, sum_value=counted.total)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counts and times in Prometheus' text format."""
    registry = request.app.state.registry
    assert isinstance(registry, CollectorRegistry), "make_app puts it there"
    engine = CollectorRegistry()
    models = door_of(request).service.models
    meters = zip(models, await asyncio.gather(*(model.meters() for model in models)), strict=True)
    engine.register(EngineCollector({model.name: told for model, told in meters if told is not None}))
    return Response(generate_latest(registry) + generate_latest(engine), media_type=CONTENT_TYPE_LATEST)
