"""Engines of a tiny model in this process, over a folder of KV; what they had native code take in; what folders hold."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fakes import run_to_end, text_of

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.block_file import decode
from pinyon.engine.config import EngineConfig
from pinyon.engine.engine import Engine
from pinyon.engine.events import Finished
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.prefix_tree import Leaf
from pinyon.engine.request import GenerateRequest, SamplingParams, Text

ROOMY = 1 << 28
LONG_AGO = "".join(f"{number:03}," for number in range(50))
"""A prompt of 200 tokens of the tiny model: three whole blocks and a tail."""


class Answered(NamedTuple):
    text: str
    end: Finished


class KeptEngine(NamedTuple):
    """`imported` is every state that native code was given."""

    loaded: LoadedEngine
    imported: list[bytes]

    @property
    def engine(self) -> Engine:
        return self.loaded.engine

    def ask(self, prompt: str, max_tokens: int = 8, **fields: object) -> Answered:
        request = GenerateRequest("a", (Text(prompt),), SamplingParams(temperature=0), max_tokens, **fields)
        events = run_to_end(self.engine, request)["a"]
        assert isinstance(events[-1], Finished), events[-1]
        return Answered(text_of(events), events[-1])

    def tidy(self) -> None:
        """Do all that waits for idle time, but for what waits for a time to come."""
        while self.engine.tidy() == 0.0:
            pass

    def kv(self, leaf: Leaf) -> list[bytes]:
        """Return the KV of a sequence's whole blocks, as native code exports it."""
        context, scratch = self.loaded.context, self.engine._kv._blocks._scratch
        states = []
        for start in range(0, leaf.length - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            context.copy_sequence(leaf.sequence_id, scratch, start, start + BLOCK_TOKENS)
            states.append(bytes(context.export_state(scratch)))
            context.remove_sequence(scratch)
        return states

    @property
    def leaves(self) -> list[Leaf]:
        return self.engine._kv._cells._tree.leaves


@contextlib.contextmanager
def kept_engine(
    model: Path,
    folder: Path | None,
    *,
    context: int | None = None,
    ram_cap_bytes: int = ROOMY,
    disk_cap_bytes: int = ROOMY,
    changed: Callable[[list[str]], list[str]] = lambda settings: settings,
) -> Iterator[KeptEngine]:
    """Run an engine that keeps KV in a folder; the settings that its KV depends on can be `changed`.

    Whatever it costs, what was kept comes back: the tiny model computes as fast as files are read.
    """
    with (model.parent / "native.log").open("a") as log:
        config = EngineConfig(bytes(model), 1, context, kv_ram_cap_bytes=ram_cap_bytes)
        loaded = load_engine(config, model, NativeLog(log))
        blocks, costs = loaded.engine._kv._blocks, loaded.engine._kv._costs
        costs.measure_step = lambda _rows, _span, _seconds: None
        made = KeptEngine(loaded, [])

        def import_state(sequence_id: int, state: bytes | memoryview) -> bool:
            made.imported.append(bytes(state))
            return loaded.context.import_state(sequence_id, state)

        blocks._memory = _Spied(loaded, import_state)
        if folder is not None:
            tier = open_tier(folder, model, changed([*loaded.context.kv_settings]), disk_cap_bytes)
            loaded.engine.use_disk(tier)
        try:
            yield made
        finally:
            loaded.engine.close()
            loaded.close()


class _Spied:
    def __init__(self, loaded: LoadedEngine, import_state: object) -> None:
        self._context = loaded.context
        self.import_state = import_state

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)


def blocks_in(folder: Path) -> list[Path]:
    """Return the files of blocks, in the order of their places."""
    return sorted(folder.rglob("*.kv"), key=lambda path: decode(path.read_bytes())[0].start)


def payloads_in(folder: Path) -> set[bytes]:
    return {bytes(decode(path.read_bytes())[1]) for path in blocks_in(folder)}


def bytes_in(folder: Path) -> int:
    """Return how many bytes all files below a folder hold, whatever they are."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
