"""What an engine holds and does at a moment. Each part says what it knows: cells and blocks, sequences, processes, devices."""

from typing import Final

import msgspec

from pinyon.engine.step_curve import Curve
from pinyon.engine.tally import Counts

PROMPT_ROWS: Final = 64


class Vram(msgspec.Struct, frozen=True):
    """The memory of a device other than the CPU, and how much of it all programs together use."""

    device: str
    used_bytes: int
    total_bytes: int


class Pace(msgspec.Struct, frozen=True):
    """Rows that were computed in steps of one kind, and the seconds that these took."""

    rows: int = 0
    seconds: float = 0.0

    def with_step(self, rows: int, seconds: float) -> "Pace":
        """Return the pace with one more step."""
        return Pace(self.rows + rows, self.seconds + seconds)

    @property
    def rows_per_s(self) -> float:
        """0 while there was no such step."""
        return self.rows / self.seconds if self.seconds else 0.0


class Service(msgspec.Struct, frozen=True):
    """How people are served, counted since the engine was started.

    Sequences that gave way to others; requests that were cancelled, or refused since there was too much to do; first tokens that
    came `in_time` or `late`, of requests with a deadline; steps that took far longer than predicted.

    Answers by the seconds that they waited in the queue (`queue_s`), and to their first token (`ttft_s`), and by those of a token after
    it (`tpot_s`, a mean); tokens by how long after the one before they came (`token_s`); steps by seconds and by rows.

    Of answers that have ended: `draft_steps` steps after their prompts, in which `drafted` tokens were drafted and `accepted` of these came true.

    How fast steps of one row were (`one_row`: an answer alone), of eight, and of PROMPT_ROWS or more, which only prompts have.
    """

    preempted: int = 0
    cancelled: int = 0
    refused: int = 0
    in_time: int = 0
    late: int = 0
    slow_steps: int = 0
    draft_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    queue_s: Counts = Counts()
    ttft_s: Counts = Counts()
    tpot_s: Counts = Counts()
    token_s: Counts = Counts()
    step_s: Counts = Counts()
    step_rows: Counts = Counts()
    one_row: Pace = Pace()
    eight_rows: Pace = Pace()
    prompt_rows: Pace = Pace()


class Meters(msgspec.Struct, frozen=True):
    """Requests hold `held_cells` of the context's `cells`; `idle_cells` were left for others. `running` and `waiting` are sequences,
    the latter also of requests whose prompt is still being tokenised.

    `kv_ram_bytes` and `kv_disk_bytes` are in blocks beside the context. Rates are as measured, 0 while unknown. `rss_bytes` is
    the engine process', `available_bytes` what this machine could still give to programs, which the service adds. `curve` is what steps cost here.
    `no_drafts` says why no tokens can be drafted for this model; empty where they can.
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
    service: Service = Service()
    curve: Curve | None = None
    no_drafts: str = ""
