"""Is the memory plan of a header what the engine takes? Small models of many architectures, and the real ones that are named.

Each is loaded in a process of its own, as an engine is, with several contexts and types of KV. KV is compared twice: what a token and a
sequence keep with the size of an exported state, to the byte; and each buffer with what llama.cpp's log says of it, as it rounds. The total
is compared with the process, pages of the model's file left out. Before that it has filled its context and computed the largest step
there is, so that it has touched all that it has. Libraries count in full (Rss): in proportion (Pss) they would count less with every other
program that has them, and a process of this size differ by a tenth from run to run.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from common import finish, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from architecture_zoo import ZOO
from taken_memory import Taken, taken

from pinyon.app.fit import layout, sizes_here
from pinyon.models.memory.kv import KvChoice, bytes_per_token, layer_bytes, possible_types
from pinyon.models.memory.layers import KeptLayers
from pinyon.models.memory.plan import Choice, memory_plan
from pinyon.models.memory.sizes import ModelSizes
from pinyon.models.split_files import headers_of

MIB: Final = 1 << 20
ZOO_WIDTH: Final = 128
ZOO_CONTEXTS: Final = (1024, 4096)
REAL_CONTEXTS: Final = (2048, 8192)
CELL_HEAD_BYTES, STATE_HEAD_BYTES = 12, 8
"""Position and sequence of each cell, and of each state, as exported states have them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], type=Path, metavar="FILE", help="a real model, too")
    parser.add_argument("--only", choices=ZOO, help="one of the small models")
    arguments = parser.parse_args()
    real = arguments.model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = {
            kind: sketch(ZOO_WIDTH).write(folder / f"{number}.gguf")
            for number, (kind, sketch) in enumerate(ZOO.items())
            if arguments.only in {None, kind}
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
                choice = replace(layout(context, sizes, full_window=True), type=kv_type)
                planned, actual = _planned(sizes, choice), taken(path, choice)
                is_exact = replace(planned, total_mib=actual.total_mib) == actual
                mismatches += not is_exact
                error = errors[f"{name} {context} {kv_type}"] = planned.total_mib / actual.total_mib - 1
                say(
                    f"{name:22} {context:6} {kv_type:5} KV {' + '.join(actual.kv_mib):>15} MiB"
                    f"   {actual.token_bytes:6.0f} + {actual.state_bytes:6} bytes"
                    f"   total {planned.total_mib:8.1f} / {actual.total_mib:8.1f} MiB ({error:+.1%})"
                    + ("" if is_exact else f"   KV WAS PLANNED AS {planned}")
                )
    worst = max(errors, key=lambda which: abs(errors[which]))
    return {
        "kv_mismatches": mismatches,
        "architectures": len(small),
        "total_error_max": round(abs(errors[worst]), 4),
        "worst": worst,
        "loads": len(errors),
    }


def _planned(sizes: ModelSizes, choice: KvChoice) -> Taken:
    kept = sizes.kept
    caches = len({layer.is_windowed for layer in kept.layers if layer.key_elements})
    state_bytes = 4 * sum(layer.state_elements for layer in kept.layers)
    return Taken(
        bytes_per_token(kept, choice.type) + caches * CELL_HEAD_BYTES,
        state_bytes + STATE_HEAD_BYTES if kept.has_state else 0,
        sorted(f"{size / MIB:.2f}" for size in _buffers(kept, choice) if size),
        memory_plan(sizes, Choice(choice)).ram.resident_bytes / MIB,
    )


def _buffers(kept: KeptLayers, choice: KvChoice) -> Iterator[int]:
    """Yield the bytes of each buffer that llama.cpp makes: cells of layers without and with a window, and states."""
    stateless = replace(kept, layers=tuple(replace(layer, state_elements=0) for layer in kept.layers))
    for is_windowed in (False, True):
        sizes = zip(kept.layers, layer_bytes(stateless, choice), strict=True)
        yield sum(size for layer, size in sizes if layer.is_windowed is is_windowed)
    yield sum(layer_bytes(kept, choice)) - sum(layer_bytes(stateless, choice))


if __name__ == "__main__":
    main()
