"""How to load one model, and what the loaded engine tells about itself."""

from typing import Final, Literal, TypeAlias

import msgspec

from pinyon.engine.errors import DoesNotFitError
from pinyon.engine.request import SamplingParams

DEFAULT_CONTEXT_TOKENS = 8192
LONG_TEXT_CHARS = 1 << 15
"""Some tokenizers take seconds from here on."""
KvType: TypeAlias = Literal["f16", "q8_0", "q4_0"]
"""How keys and values are stored."""
ALL_LAYERS: Final = -1

ANSWER_WITHIN_S = 45
"""Some native calls take long, and nothing can look into them: the first pages of a large model from a slow disk."""


class Limits(msgspec.Struct, frozen=True):
    """What the engine lets wait, and how long it lets people wait for a step.

    `queue` answers may wait, `client_queue` of one client. While somebody reads an answer a step takes at most `stall_s`, or
    twice what it takes without any prompt, if that is more. A request that needs more than `long_share` of the context's cells,
    besides those that it shares, is long: one of them runs at a time.
    """

    queue: int = 128
    client_queue: int = 128
    stall_s: float = 0.15
    long_share: float = 0.25


def check_context(asked_tokens: int, trained_tokens: int) -> None:
    """Raise DoesNotFitError where a context is larger than what a model was trained for, or none at all."""
    if not 1 < asked_tokens <= trained_tokens:
        raise DoesNotFitError(
            f"a context of {asked_tokens:,} tokens was asked for; this model was trained for up to {trained_tokens:,}: "
            "ask for at most that"
        )


class EngineConfig(msgspec.Struct, frozen=True):
    """`model_path` is a file system path in bytes, since paths need not be text.

    `context_tokens` None means what the model was trained for, at most DEFAULT_CONTEXT_TOKENS. `kv_ram_cap_bytes` is the
    room for blocks of KV beside the context; in `kv_folder`, a path in bytes, they may take `kv_disk_cap_bytes` more. Without
    `full_window`, layers with a sliding window keep just its cells where that takes less memory; fewer requests run at once then.
    The last `gpu_layers` layers go to GPUs where there are any, the output as one of them; of the first `cpu_expert_layers` layers the experts stay in RAM.
    An engine that gives no sign of life for `answer_within_s` is killed, and started again. What steps cost is kept in
    `calibration_folder` if KV is kept on disk: only then is the weights' digest known.
    """

    model_path: bytes
    threads: int
    context_tokens: int | None = None
    kv_ram_cap_bytes: int = 0
    kv_folder: bytes | None = None
    kv_disk_cap_bytes: int = 0
    full_window: bool = True
    kv_type: KvType = "f16"
    gpu_layers: int = ALL_LAYERS
    cpu_expert_layers: int = 0
    calibration_folder: bytes | None = None
    limits: Limits = Limits()
    answer_within_s: float = ANSWER_WITHIN_S


class Buffer(msgspec.Struct, frozen=True):
    """Memory that llama.cpp has taken for a model: what for ("model", "KV", "RS", "compute", "output"), where, and to the nearest 0.01 MiB how much.

    A place is a kind of memory by ggml's name, such as CPU, CPU_Mapped (pages of the file), CPU_REPACK or CUDA0.
    """

    purpose: str
    place: str
    size_bytes: int


class EngineInfo(msgspec.Struct, frozen=True):
    """A loaded model. Strings are the texts of vocabulary entries; empty where the model has none.

    `control_strings` become control tokens where special tokens are parsed; `tag_strings` are other tokens that look
    like tags; `eog_strings` end an answer. `buffers` are what it takes of memory. `sampling` holds the file's own defaults over Pinyon's.
    """

    build: str
    context_tokens: int
    trained_context_tokens: int
    vocab_size: int
    bos: str
    eos: str
    control_strings: tuple[str, ...]
    tag_strings: tuple[str, ...]
    eog_strings: tuple[str, ...]
    chat_template: str | None
    sampling: SamplingParams
    threads: int
    buffers: tuple[Buffer, ...] = ()
