"""Run as a script: loads an engine as a worker does, has it compute as much as it can, and prints what it took as JSON.

It imports what a worker imports, and nothing else. Its other side is `taken_memory`.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

import pinyon.engine.worker  # noqa: F401  its modules count, too
from pinyon.engine.config import EngineConfig
from pinyon.engine.loader import load_engine
from pinyon.engine.native import Context, NativeLog, RowBuffer

MIB: Final = 1 << 20
FEW_TOKENS: Final = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("kv_type")
    for name in ("threads", "context", "rows", "sequences"):
        parser.add_argument(name, type=int)
    arguments = parser.parse_args()
    path, rows = arguments.model, arguments.rows
    config = EngineConfig(os.fsencode(path), arguments.threads, arguments.context, kv_type=arguments.kv_type)
    loaded = load_engine(config, path, NativeLog(sys.stderr))
    buffer = RowBuffer(rows)
    buffer.tokens[:] = 10
    for start in range(0, arguments.context - rows + 1, rows):
        buffer.positions[:] = range(start, start + rows)
        buffer.wants_logits[: arguments.sequences] = 1
        loaded.context.decode(buffer, rows)
    total_mib = _taken_mib(path)
    token_bytes, checkpoint_bytes = _kept(loaded.context, buffer)
    state_bytes = checkpoint_bytes if loaded.model.keeps_state_per_sequence else 0
    kv = sorted(f"{each.size_bytes / MIB:.2f}" for each in loaded.info.buffers if each.purpose in {"KV", "RS"})
    taken = {"token_bytes": token_bytes, "state_bytes": state_bytes, "kv_mib": kv, "total_mib": total_mib}
    print(json.dumps(taken))


def _kept(context: Context, buffer: RowBuffer) -> tuple[float, int]:
    """Return the bytes that exported states have for a token, and those of a checkpoint beyond an empty sequence's."""
    context.clear_memory()
    checkpoints, exports = [len(context.export_checkpoint(0))], []
    for start in (0, FEW_TOKENS):
        buffer.positions[:FEW_TOKENS] = range(start, start + FEW_TOKENS)
        context.decode(buffer, FEW_TOKENS)
        exports.append(len(context.export_state(0)))
        checkpoints.append(len(context.export_checkpoint(0)))
    return (exports[1] - exports[0]) / FEW_TOKENS, checkpoints[2] - checkpoints[0]


def _taken_mib(model: Path) -> float:
    """Return how much of this process is in RAM, pages of the model's file left out, in MiB."""
    total_kib, of_model = 0, False
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            of_model = line.endswith(str(model))
        elif line.startswith("Rss:") and not of_model:
            total_kib += int(line.split()[1])
    return total_kib / 1024


if __name__ == "__main__":
    main()
