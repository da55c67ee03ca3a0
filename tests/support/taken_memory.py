"""What a model really takes: a process that loads it, and says so."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pinyon.models.machine.cores import read_cores
from pinyon.models.memory.kv import KvChoice


@dataclass(frozen=True)
class Taken:
    """Bytes that exported states have for a token, and for a sequence where there are states; what the log says of each buffer of KV;
    the whole process without pages of the model's file.
    """

    token_bytes: float
    state_bytes: int
    kv_mib: list[str]
    total_mib: float


def taken(path: Path, choice: KvChoice) -> Taken:
    """Load a model with a context in a process of its own, and have it fill that."""
    script = Path(__file__).with_name("memory_taken.py")
    numbers = (read_cores().threads, choice.cells, choice.batch_rows, choice.sequences)
    order = [sys.executable, str(script), str(path), choice.type.value, *map(str, numbers)]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{path} could not be measured: {done.stderr[-500:]}"
    return Taken(**json.loads(done.stdout))
