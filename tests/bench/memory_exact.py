"""Is the memory plan of a header what the engine takes? Small models of many architectures, and the real ones that are named.

Each is loaded in a process of its own, as an engine is, with several contexts and types of KV. KV is compared with what llama.cpp says it
allocates (to the rounding of its log); the total with the process: what it shares with others in proportion, pages of the model's file
left out. Before that it has filled its context and computed the largest step there is, so that it has touched all that it has.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from common import finish, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from architecture_zoo import ZOO

from pinyon.app.fit import layout, sizes_here
from pinyon.engine.config import EngineConfig
from pinyon.models.machine.cores import usable_threads
from pinyon.models.memory.kv import KvType, possible_types
from pinyon.models.memory.plan import Choice, memory_plan
from pinyon.models.memory.sizes import ModelSizes
from pinyon.models.split_files import headers_of

MIB: Final = 1 << 20
ZOO_WIDTH: Final = 128
ZOO_CONTEXTS: Final = (1024, 4096)
REAL_CONTEXTS: Final = (2048, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], type=Path, metavar="FILE", help="a real model, too")
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        path, context, kv_type = arguments.load
        _load(Path(path), int(context), kv_type)
        return
    real = arguments.model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = {
            kind: sketch(ZOO_WIDTH).write(folder / f"{number}.gguf")
            for number, (kind, sketch) in enumerate(ZOO.items())
        }
        result = _compare(small, {path.stem: path for path in real})
    say(f"worst total: {result['worst']}")
    finish(result)


def _compare(small: dict[str, Path], real: dict[str, Path]) -> dict[str, object]:
    mismatches, errors = 0, {}
    for name, path in {**small, **real}.items():
        sizes = sizes_here(headers_of(path))
        contexts = REAL_CONTEXTS if name in real else ZOO_CONTEXTS
        for context in contexts:
            for kv_type in possible_types(sizes.kept):
                planned_kv, kv, planned, actual = _measured(path, sizes, context, kv_type)
                mismatches += abs(planned_kv - kv) > 0.01  # two rounded numbers
                errors[f"{name} {context} {kv_type}"] = planned / actual - 1
                say(
                    f"{name:22} {context:6} {kv_type:5} KV {planned_kv:8.2f} / {kv:8.2f} MiB"
                    f"   total {planned:8.1f} / {actual:8.1f} MiB ({planned / actual - 1:+.1%})"
                )
    worst = max(errors, key=lambda which: abs(errors[which]))
    return {
        "kv_mismatches": mismatches,
        "architectures": len(small),
        "total_error_max": round(abs(errors[worst]), 4),
        "worst": worst,
        "loads": len(errors),
    }


def _measured(path: Path, sizes: ModelSizes, context: int, kv_type: KvType) -> tuple[float, float, float, float]:
    """Return KV and total in MiB, each as planned and as it is."""
    shape = layout(context, sizes, full_window=True)
    plan = memory_plan(sizes, Choice(replace(shape, type=kv_type))).ram
    order = [sys.executable, __file__, "--load", str(path), str(context), kv_type.value]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path} could not be measured: {done.stderr[-500:]}")
    kv_mib, taken_mib = map(float, done.stdout.split())
    return plan.kv_bytes / MIB, kv_mib, plan.resident_bytes / MIB, taken_mib


def _load(path: Path, context: int, kv_type: str) -> None:
    """Load an engine as a worker does, let it compute the largest step there is at the end of the context, print MiB of KV and in all."""
    from pinyon.engine.loader import load_engine
    from pinyon.engine.native import NativeLog, RowBuffer

    config = EngineConfig(os.fsencode(path), usable_threads(), context, kv_type=kv_type)
    loaded = load_engine(config, path, NativeLog(sys.stderr))
    shape = layout(context, sizes_here(headers_of(path)), full_window=True)
    buffer = RowBuffer(shape.batch_rows)
    buffer.tokens[:] = 10
    for start in range(0, context - shape.batch_rows + 1, shape.batch_rows):
        buffer.positions[:] = range(start, start + shape.batch_rows)
        buffer.wants_logits[: shape.sequences] = 1
        loaded.context.decode(buffer, shape.batch_rows)
    kv_bytes = sum(buffer.size_bytes for buffer in loaded.info.buffers if buffer.purpose in {"KV", "RS"})
    print(kv_bytes / MIB, _taken_mib(os.getpid(), path))


def _taken_mib(pid: int, model: Path) -> float:
    """Return a process' proportional set size, pages of the model's file left out, in MiB."""
    total_kib, of_model = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text("utf-8", "replace").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            of_model = line.endswith(str(model))
        elif line.startswith("Pss:") and not of_model:
            total_kib += int(line.split()[1])
    return total_kib / 1024


if __name__ == "__main__":
    main()
