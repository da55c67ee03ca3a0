"""Whether a model fits into what is free on this machine, and how: its header's sizes, the engine's layout, the settings' wishes."""

import platform
from collections.abc import Mapping, Sequence
from typing import Final

from pinyon.app.counted import memory
from pinyon.app.settings import Settings
from pinyon.engine.context_shape import context_shape
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.machine.devices import Gpu
from pinyon.models.machine.ram import Ram
from pinyon.models.memory.fit import Budget, Fit
from pinyon.models.memory.kv import KvChoice
from pinyon.models.memory.plan import RAM
from pinyon.models.memory.sizes import ModelSizes, model_sizes

MIB: Final = 1 << 20
HEADROOM_SHARE: Final = 0.1
MOST_HEADROOM_BYTES: Final = 1 << 30
"""What is left free on a device where no setting says: a tenth of its memory, at most this."""

_ON_X86: Final = frozenset({"IQ4_NL", "MXFP4", "Q2_K", "Q4_0", "Q4_K"})
_ON_ARM: Final = frozenset({"IQ4_NL", "MXFP4", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0"})
_REPACKED: Final = {"x86_64": _ON_X86, "AMD64": _ON_X86, "arm64": _ON_ARM, "aarch64": _ON_ARM}
"""Which weight types CPUs of today keep in another order, by machine (ggml_repack_get_optimal_repack_type): a copy beside the file's pages."""


def sizes_here(headers: Sequence[GgufHeader]) -> ModelSizes:
    """Return a model's sizes on this machine."""
    return model_sizes(headers, _REPACKED.get(platform.machine(), frozenset()))


def budget(settings: Settings, ram: Ram, gpus: Sequence[Gpu] = ()) -> Budget:
    """Return what a model may take: what is free, less the headroom of each device."""
    return Budget(
        max(0, ram.available_bytes - headroom_bytes(settings, RAM, ram.limit_bytes or ram.total_bytes)),
        tuple((gpu.name, max(0, gpu.free_bytes - headroom_bytes(settings, gpu.name, gpu.total_bytes))) for gpu in gpus),
        frozenset(gpu.name for gpu in gpus if gpu.shares_ram),
    )


def headroom_bytes(settings: Settings, device: str, total_bytes: int) -> int:
    """Return what is left free on a device: the setting's, else a share of all it has."""
    asked = settings.headroom_mib.get(device)
    return min(int(total_bytes * HEADROOM_SHARE), MOST_HEADROOM_BYTES) if asked is None else asked * MIB


def told(fit: Fit) -> tuple[str, ...]:
    """Return what was given up, and what is lacking all the same, in words."""
    lacking = (f"{memory(size)} more of {device} than is free: slow, or killed" for device, size in fit.lacking)
    return (*(compromise.text for compromise in fit.compromises), *lacking)


def remedy(fit: Fit, budget: Budget) -> str:
    """Return what a model that does not fit needs, what is free, and what would have to change; empty where it fits."""
    if fit.fits:
        return ""
    free = {RAM: budget.ram_bytes, **dict(budget.gpus)}
    needed = {device: free[device] + size for device, size in fit.lacking}
    lacking_bytes = sum(size for _, size in fit.lacking)
    weights_bytes = sum(need.weights_bytes for need in fit.plan.devices)
    smaller = (
        f", or weights of at most {memory(weights_bytes - lacking_bytes)} taken instead of {memory(weights_bytes)}"
        if lacking_bytes < weights_bytes
        else ""
    )
    return (
        f"needs {_each(needed)}, {_each({device: free[device] for device in needed})} are free for it: {memory(lacking_bytes)} more would"
        f" have to be free for {fit.context_tokens:,} tokens of context{smaller}"
    )


def _each(bytes_of: Mapping[str, int]) -> str:
    return " and ".join(
        memory(size) if device == RAM else f"{memory(size)} of {device}" for device, size in bytes_of.items()
    )


def layout(context_tokens: int, sizes: ModelSizes, full_window: bool) -> KvChoice:
    """Return how the engine lays out a context for a model."""
    shape = context_shape(
        context_tokens, window=sizes.kept.window, has_state=sizes.kept.has_state, full_window=full_window
    )
    return KvChoice(context_tokens, shape.sequence_ids, shape.batch_rows, full_window=shape.full_window)
