"""Puts an engine together: model, context, vocabulary, scheduler, and the facts that others need about it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinyon.engine.admission import Admission
from pinyon.engine.block_store import BlockStore
from pinyon.engine.calibration import Calibration
from pinyon.engine.checkpoints import Checkpoints
from pinyon.engine.config import (
    DEFAULT_CONTEXT_TOKENS,
    Buffer,
    EngineConfig,
    EngineInfo,
    check_context,
)
from pinyon.engine.constraint import GrammarCompiler
from pinyon.engine.context_shape import ContextShape, context_shape
from pinyon.engine.cost_model import CostModel
from pinyon.engine.drafters import SuffixDrafter
from pinyon.engine.engine import Engine
from pinyon.engine.errors import InvalidRequestError, ModelLoadError
from pinyon.engine.kv_blocks import KvBlocks
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.native import Context, Model, NativeLog, check_binding, shown
from pinyon.engine.request import SamplingParams
from pinyon.engine.runner import Runner
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.speculation import Speculation
from pinyon.engine.step_budget import StepBudget
from pinyon.engine.vocab import Vocab
from pinyon.engine.weights_digest import file_identity


class LoadedEngine(NamedTuple):
    engine: Engine
    vocab: Vocab
    context: Context
    model: Model
    store: BlockStore
    info: EngineInfo
    file_identity: str
    """Of the model's file, from before it was read."""

    def close(self) -> None:
        """Free native memory, the context before its model."""
        self.context.close()
        self.model.close()


def load_engine(
    config: EngineConfig, path: Path, log: NativeLog, on_progress: Callable[[float], bool] = lambda _fraction: True
) -> LoadedEngine:
    """Load a model and make its engine.

    Raises:
        BindingError: llama-cpp-python does not fit.
        ModelLoadError: the file or the asked context cannot be used; the message says why.
    """
    build = check_binding()
    identity = file_identity(path) if path.exists() else ""  # what is not there, the model's loading will tell
    model = Model(path, log, on_progress, gpu_layers=config.gpu_layers, cpu_expert_layers=config.cpu_expert_layers)
    if not model.generates_text:
        raise ModelLoadError(
            f"cannot use {shown(path)}: it is an embedding, encoder-decoder or diffusion model, not a text generator"
        )
    context_tokens = _context_tokens(config, model)
    shape = context_shape(
        context_tokens,
        window=model.window,
        has_state=model.keeps_state_per_sequence,
        full_window=config.full_window,
    )
    vocab = Vocab(model.vocabulary)
    with ThreadPoolExecutor(1) as beside:  # the walk through a large vocabulary takes as long as making the context
        beside.submit(lambda: vocab.control_strings)
        context = Context(
            model,
            log,
            cells=context_tokens,
            sequence_ids=shape.sequence_ids,
            batch_rows=shape.batch_rows,
            threads=config.threads,
            full_window=shape.full_window,
            kv_type=config.kv_type,
        )
    guarded_window = 0 if shape.needs_checkpoints else model.window
    costs = CostModel()
    store = BlockStore(config.kv_ram_cap_bytes, awaits_disk=config.kv_folder is not None)
    cells, kv = _shared_kv(store, context, costs, context_tokens, shape, guarded_window)
    budget = StepBudget(costs, max_rows=shape.batch_rows, stall_s=config.limits.stall_s)
    speculation = None if shape.needs_checkpoints else Speculation(SuffixDrafter(), outputs=shape.sequence_ids)
    scheduler = Scheduler(kv, budget, config.limits, speculation=speculation)
    admission = Admission(scheduler, kv, costs, budget, config.limits)
    grammars = GrammarCompiler(model.vocabulary, vocab.eog_tokens)
    runner = Runner(context, shape.batch_rows, cells.ids_of)
    engine = Engine(
        vocab,
        runner,
        scheduler,
        admission,
        kv,
        costs,
        context_tokens,
        grammars.compile,
        Calibration(context, costs, shape.sequence_ids - 1),
    )
    info = _info(build, model, vocab, context_tokens, config.threads, tuple(log.buffers))
    return LoadedEngine(engine, vocab, context, model, store, info, identity)


def _info(
    build: str, model: Model, vocab: Vocab, context_tokens: int, threads: int, buffers: tuple[Buffer, ...]
) -> EngineInfo:
    return EngineInfo(
        build=build,
        context_tokens=context_tokens,
        trained_context_tokens=model.trained_context,
        vocab_size=vocab.size,
        bos=vocab.token_text(model.vocabulary.bos),
        eos=vocab.token_text(model.vocabulary.eos),
        control_strings=vocab.control_strings,
        tag_strings=vocab.tag_strings,
        eog_strings=vocab.eog_strings,
        chat_template=model.chat_template(),
        sampling=_sampling_defaults(model),
        threads=threads,
        buffers=buffers,
    )


def _shared_kv(
    store: BlockStore, context: Context, costs: CostModel, context_tokens: int, shape: ContextShape, window: int
) -> tuple[KvCells, SharedKv]:
    scratch = shape.sequence_ids - 1
    cells = KvCells(
        context,
        cells=context_tokens,
        sequence_ids=scratch // 2 if window else scratch,
        window=window,
        needs_checkpoints=shape.needs_checkpoints,
        before_drop=lambda leaf: blocks.save_all_of(leaf),  # noqa: PLW0108  there are none yet
    )
    checkpoints = Checkpoints(context, store, costs, scratch) if shape.needs_checkpoints else None
    blocks = KvBlocks(context, cells, store, costs, scratch, checkpoints)
    return cells, SharedKv(cells, blocks, store, costs)


def _context_tokens(config: EngineConfig, model: Model) -> int:
    trained = model.trained_context
    asked = config.context_tokens
    if asked is None:
        return min(trained, DEFAULT_CONTEXT_TOKENS)
    check_context(asked, trained)
    return asked


_SAMPLING_METADATA = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "repeat_penalty": ("general.sampling.penalty_repeat", float),
    "repeat_last_n": ("general.sampling.penalty_last_n", int),
}


def _sampling_defaults(model: Model) -> SamplingParams:
    """Return Pinyon's defaults with what the file itself recommends; a recommendation out of range is not followed."""
    params = SamplingParams()
    for field, (key, kind) in _SAMPLING_METADATA.items():
        value = model.metadata(key)
        if value is None:
            continue
        try:
            params = msgspec.structs.replace(params, **{field: kind(value)}).checked(model.vocabulary.size)
        except (ValueError, InvalidRequestError):
            continue
    return params
