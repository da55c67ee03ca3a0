"""`pinyon ps`: the running server, and what it is doing."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from pinyon.app.cli.terminal import print_json
from pinyon.app.counted import counted
from pinyon.app.settings import Folders
from pinyon.app.wire import Memory, ModelStatus, Status, Taken
from pinyon.engine.meters import Meters, Service

if TYPE_CHECKING:
    from pinyon.models.speed_prediction import Speed


@click.command(name="ps")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show the running server: its models, what they are doing and what memory they take. None running is no error."""
    servers = asyncio.run(_servers())
    folders = Folders.of_user()
    if as_json:
        print_json({"servers": [{"url": each.url, **_shown(each.status, folders)} for each in servers]})
    elif not servers:
        print("no server is running", file=sys.stderr)
    for server in () if as_json else servers:
        for name, value in _rows(server.url, server.status):
            print(f"{name:<8} {value}")
        for model in server.status.models:
            print()
            for name, value in _model_rows(model, _speeds(model, folders)):
                print(f"{name:<8} {value}")


class _Server(NamedTuple):
    url: str
    status: Status


async def _servers() -> list[_Server]:
    from pinyon.app.remote import find_server  # noqa: PLC0415  an HTTP client takes 0.07 s to import

    server = await find_server(Folders.of_user())
    return [] if server is None else [_Server(server.url, await server.status())]


class _Pair(NamedTuple):
    """Tokens per second as they were measured, and predicted; None where they were not."""

    measured: float | None
    predicted: float | None


class _Speeds(NamedTuple):
    """Of one answer, of eight at once, and of prompts."""

    one: _Pair
    eight: _Pair
    prompts: _Pair


def _speeds(model: ModelStatus, folders: Folders) -> _Speeds:
    """Hold what was predicted against what was measured."""
    guess = _predicted(model, folders)
    service = Service() if model.meters is None else model.meters.service
    return _Speeds(
        _Pair(service.one_row.rows_per_s or None, None if guess is None else guess.decode_tokens_per_s),
        _Pair(service.eight_rows.rows_per_s or None, None if guess is None else guess.batch_tokens_per_s),
        _Pair(service.prompt_rows.rows_per_s or None, None if guess is None else guess.prefill_tokens_per_s),
    )


def _predicted(model: ModelStatus, folders: Folders) -> "Speed | None":
    """Return what is predicted for a model; None where weights were not measured, or its file has gone."""
    from pinyon.app.machine_speed import stored_speed  # noqa: PLC0415  without a server nothing is predicted
    from pinyon.models.errors import ModelError  # noqa: PLC0415
    from pinyon.models.speed_prediction import predicted_speed  # noqa: PLC0415
    from pinyon.models.split_files import headers_of  # noqa: PLC0415

    if (speed := stored_speed(folders, model.threads)) is None:
        return None
    try:
        return predicted_speed(headers_of(Path(os.fsdecode(model.path))), speed)
    except ModelError:
        return None


def _shown(status: Status, folders: Folders) -> dict[str, object]:
    models = [
        {
            **msgspec.structs.asdict(model),
            "path": os.fsdecode(model.path),
            "tokens_per_s": {name: pair._asdict() for name, pair in _speeds(model, folders)._asdict().items()},
        }
        for model in status.models
    ]
    return {**msgspec.structs.asdict(status), "models": models}


def _rows(url: str, status: Status) -> list[tuple[str, str]]:
    none = [] if status.models else [("model", "none is loaded")]
    return [
        *none,
        ("server", "shutting down" if status.is_draining else "running"),
        ("answers", f"{status.running} running, {status.waiting} waiting"),
        ("url", url),
        ("pid", str(status.pid)),
        ("up", _duration(int(status.uptime_s))),
    ]


def _model_rows(model: ModelStatus, speeds: _Speeds) -> list[tuple[str, str]]:
    about = f"context {model.context_tokens:,} tokens, KV in {model.memory.kv_type}, {counted(model.threads, 'thread')}"
    return [
        ("model", f"{model.name} ({about})"),
        ("engine", model.engine_state if model.progress is None else f"{model.engine_state}, {model.progress:.0%}"),
        ("answers", f"{model.running} running, {model.waiting} waiting"),
        *(("fits by", text) for text in model.memory.compromises),
        ("planned", _planned(model.memory)),
        *([] if model.memory.taken is None else [("taken", _taken(model.memory.taken))]),
        *([] if model.meters is None else _meter_rows(model.meters, speeds)),
    ]


def _planned(memory: Memory) -> str:
    parts = [
        f"{_mb(memory.ram_bytes)} of RAM",
        *(f"{_mb(size)} of {device}" for device, size in memory.gpu_bytes.items()),
    ]
    what = (
        f"weights {_mb(memory.weights_bytes)} ({_mb(memory.mapped_bytes)} of them pages of the file), KV {_mb(memory.kv_bytes)}, "
        f"computing {_mb(memory.compute_bytes)}"
    )
    return f"{', '.join(parts)}: {what}; up to {_mb(memory.cache_bytes)} more for KV of earlier prompts"


def _taken(taken: Taken) -> str:
    return f"weights {_mb(taken.weights_bytes)}, KV {_mb(taken.kv_bytes)}, computing {_mb(taken.compute_bytes)}, as llama.cpp tells"


def _meter_rows(meters: Meters, speeds: _Speeds) -> list[tuple[str, str]]:
    pairs = {"one answer": speeds.one, "8 answers": speeds.eight, "prompts": speeds.prompts}
    shown = [
        *(_speed(what, pair.measured, pair.predicted) for what, pair in pairs.items() if pair.measured),
        *([f"KV comes back at {_mb(int(meters.restore_bytes_per_s))}/s"] if meters.restore_bytes_per_s else []),
    ]
    return [
        ("context", f"{meters.held_cells:,} of {meters.cells:,} tokens in use, {meters.idle_cells:,} kept for others"),
        ("cache", f"{_mb(meters.kv_ram_bytes)} in memory, {_mb(meters.kv_disk_bytes)} on disk"),
        ("speed", ", ".join(shown) or "not measured yet"),
        *_service_rows(meters.service),
        *([("drafts", told)] if (told := _drafts(meters)) else []),
        ("memory", f"{_mb(meters.rss_bytes)} used by the engine, {_mb(meters.available_bytes)} available"),
        *(("gpu", f"{each.device}: {_mb(each.used_bytes)} of {_mb(each.total_bytes)} in use") for each in meters.vram),
    ]


def _speed(what: str, measured: float, predicted: float | None) -> str:
    guess = "" if predicted is None else f" ({predicted:,.0f} were predicted)"
    return f"{what} {measured:,.0f} tokens/s{guess}"


def _service_rows(service: Service) -> list[tuple[str, str]]:
    """How people are served, where anybody was."""
    times = {
        "queue": service.queue_s,
        "TTFT": service.ttft_s,
        "TPOT": service.tpot_s,
        "ITL": service.token_s,
        "step": service.step_s,
    }
    shown = [
        (name, f"p50 {counts.quantile(0.5):.3g} s, p95 {counts.quantile(0.95):.3g} s")
        for name, counts in times.items()
        if counts.number
    ]
    if not service.step_rows.number:
        return shown
    given = {
        "gave way": service.preempted,
        "cancelled": service.cancelled,
        "refused": service.refused,
        "late": service.late,
        "in time": service.in_time,
        "slow steps": service.slow_steps,
    }
    given_way = ", ".join(f"{count:,} {name}" for name, count in given.items() if count)
    batch = f"{service.step_rows.total / service.step_rows.number:.1f} tokens a step"
    return [*shown, ("batch", batch), ("service", given_way or "nobody gave way or was refused")]


def _drafts(meters: Meters) -> str:
    """What came of tokens drafted ahead, or why there are none."""
    service = meters.service
    if meters.no_drafts:
        return f"none: {meters.no_drafts}"
    if not service.draft_steps:
        return ""
    per_step = 1 + service.accepted / service.draft_steps
    return f"{service.accepted:,} of {service.drafted:,} tokens came true, {per_step:.2f} tokens a step"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def _duration(seconds: int) -> str:
    """As 1:02:03, with days before it where there are any."""
    days, seconds = divmod(seconds, 86400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} d {clock}" if days else clock
