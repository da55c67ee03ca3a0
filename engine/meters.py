"""What an engine holds and does at a moment. Each part says what it knows: cells and blocks, sequences, processes, devices."""

import msgspec


class Vram(msgspec.Struct, frozen=True):
    """The memory of a device other than the CPU, and how much of it all programs together use."""

    device: str
    used_bytes: int
    total_bytes: int


class Meters(msgspec.Struct, frozen=True):
    """Requests hold `held_cells` of the context's `cells`; `idle_cells` were left for others. `running` and `waiting` are sequences,
    the latter also of requests whose prompt is still being tokenised.

    `kv_ram_bytes` and `kv_disk_bytes` are in blocks beside the context. Rates are as measured, 0 while unknown. `rss_bytes` is
    the engine process', `available_bytes` what this machine could still give to programs.
    """

    cells: int = 0
    held_cells: int = 0
    idle_cells: int = 0
    running: int = 0
    waiting: int = 0
    kv_ram_bytes: int = 0
    kv_disk_bytes: int = 0
    prefill_tokens_per_s: float = 0.0
    restore_bytes_per_s: float = 0.0
    rss_bytes: int = 0
    available_bytes: int = 0
    vram: tuple[Vram, ...] = ()
