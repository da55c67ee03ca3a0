"""How fast this machine computes with each weight type: measured in a child process when a command asks for it, and kept."""

import asyncio
import contextlib
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final, cast

import msgspec

from pinyon.app.errors import MeasuringError
from pinyon.app.settings import Folders
from pinyon.engine.cost_file import cpu_name
from pinyon.engine.probe_messages import LayerCost, ProbeLine, ProbeOrder, WeightType
from pinyon.engine.worker_process import worker_environment
from pinyon.models.disk import printable
from pinyon.models.ggml_types import GGML_TYPES, TYPES_BY_NAME
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES, Computer, WeightSpeed, read_speed, write_speed

_COMMAND: Final = (sys.executable, "-P", "-m", "pinyon.engine.weight_probe")
_REFERENCE: Final = "Q4_0"
"""Quick everywhere, so that layers are not lost beside the weights."""
_PASSES: Final = 2
_NUMBERS: Final = {kind.name: number for number, kind in GGML_TYPES.items()}
SILENCE_LIMIT_S: Final = 60.0
_AGAIN: Final = "try again when this machine has less to do"


def stored_speed(folders: Folders, threads: int) -> WeightSpeed | None:
    """Return what was measured with so many threads on this CPU and this build of llama.cpp; None where nothing was."""
    return read_speed(folders.weight_speed, _computer(threads))


async def measure_speed(
    folders: Folders,
    threads: int,
    on_progress: Callable[[float], None] = lambda _share: None,
    *,
    command: Sequence[str] = _COMMAND,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> WeightSpeed:
    """Measure, which takes some 15 s and all of `threads` cores, and keep the result; what else runs meanwhile spoils it.

    `on_progress` is told 0 to 1. Cancelling ends the child.

    Raises:
        MeasuringError: the child died or stood still, or what it measured cannot be.
        OSError: the result cannot be kept.
    """
    types = tuple(map(_weight_type, WEIGHT_TYPES))
    order = ProbeOrder(threads, ROWS, _PASSES, _weight_type(_REFERENCE), types)
    expected = 1 + _PASSES * len(types)
    lines: list[ProbeLine] = []
    async with contextlib.aclosing(_probe(order, command, silence_limit_s)) as probe:
        async for line in probe:
            lines.append(line)
            on_progress(min(1.0, len(lines) / expected))
    speed = _least(lines, _computer(threads))
    if len(lines) != expected or not speed.is_sound:
        raise MeasuringError(f"what was measured of the weight types cannot be true: {_AGAIN}")
    write_speed(folders.weight_speed, speed)
    return speed


def _least(lines: Sequence[ProbeLine], computer: Computer) -> WeightSpeed:
    layer, weight_s = LayerCost((), ()), dict[str, tuple[float, ...]]()
    for line in lines:
        if isinstance(line, LayerCost):
            layer = line
        elif line.weight_s:
            name = GGML_TYPES[line.number].name
            weight_s[name] = tuple(map(min, line.weight_s, weight_s.get(name, line.weight_s)))
    return WeightSpeed(computer, ROWS, layer.layer_s, layer.width_s, weight_s)


def _weight_type(name: str) -> WeightType:
    kind = TYPES_BY_NAME[name]
    return WeightType(_NUMBERS[name], kind.block_elements, kind.block_bytes)


def _computer(threads: int) -> Computer:
    """Of installed files the record has the digests, so another build of the same version is another one."""
    try:
        build = distribution("llama-cpp-python")
        record = hashlib.sha256((build.read_text("RECORD") or "").encode()).hexdigest()[:16]
        name = f"llama-cpp-python {build.version} {record}"
    except PackageNotFoundError:
        name = ""
    return Computer(name, threads, cpu_name())


async def _probe(order: ProbeOrder, command: Sequence[str], silence_limit_s: float) -> AsyncGenerator[ProbeLine]:
    """Yield what the child says until its end. Raises MeasuringError."""
    with tempfile.TemporaryFile() as complaints:
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=worker_environment(),
                start_new_session=True,  # Ctrl+C in the terminal is for the command alone
            )
        except OSError as error:
            raise MeasuringError(f"the process that measures weight types cannot be started: {error}") from error
        try:
            async for line in _lines(child, order, silence_limit_s):
                yield line
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            await child.communicate()
        if child.returncode:
            complaints.seek(0)
            words = complaints.read().decode("utf-8", "replace").strip().split("\n")[-1] or "nothing"
            raise MeasuringError(
                f"the process that measures weight types died with exit status {child.returncode}; its last words: "
                f"{printable(words)}"
            )


async def _lines(
    child: asyncio.subprocess.Process, order: ProbeOrder, silence_limit_s: float
) -> AsyncGenerator[ProbeLine]:
    """Give the order and yield the answer's lines; an answer that is cut off is the end. Raises MeasuringError."""
    requests, answers = cast("asyncio.StreamWriter", child.stdin), cast("asyncio.StreamReader", child.stdout)
    requests.write(msgspec.json.encode(order))
    requests.close()
    try:
        while True:
            async with asyncio.timeout(silence_limit_s):
                line = await answers.readline()
                if not line:
                    await child.wait()
                    return
            yield msgspec.json.decode(line, type=ProbeLine)
    except TimeoutError:
        raise MeasuringError(
            f"the process that measures weight types said nothing for {silence_limit_s:g} s and was ended: {_AGAIN}"
        ) from None
    except (ValueError, msgspec.DecodeError) as error:  # the former for a line without end
        raise MeasuringError(f"the process that measures weight types said what makes no sense: {error}") from None
