"""An engine under load, in simulated time: requests come, a machine computes the steps and takes its time for them.

What a step takes is the machine's own affair, with noise, drift and outliers, and never the scheduler's formula. All but the machine is
the real engine's.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
from fakes import BLOCK_BYTES, ByteTable, LiteralConstraint

from pinyon.engine.admission import Admission
from pinyon.engine.batch import Batch
from pinyon.engine.block_store import BlockStore
from pinyon.engine.config import Limits
from pinyon.engine.cost_model import CostModel
from pinyon.engine.engine import Emitted, Engine
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason
from pinyon.engine.fair_share import ANSWER_WEIGHT, PROMPT_WEIGHT
from pinyon.engine.kv_blocks import KvBlocks
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.native import Logits
from pinyon.engine.request import GenerateRequest, Priority, SamplingParams, Tokens
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.sequence import State
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.step_budget import StepBudget
from pinyon.engine.vocab import Vocab

GREEDY: Final = SamplingParams(temperature=0)
MAX_STEPS: Final = 20_000
"""Whoever needs more has been forgotten."""
EXPORT_S, IMPORT_S = 2e-4, 4e-4
"""For a block."""
SCRATCH: Final = 999
_VOCAB: Final = Vocab(ByteTable())


class Machine:
    """About as quick as two cores with a model of half a billion parameters.

    Rows are cheaper in groups of eight, each group takes a wave of its own, and attention gets slower with the square root of what
    it looks at until the caches are full, and evenly from there. `spread` is the noise of a step, `outliers` the share of steps that
    take ten times as long, `drift` how much slower the machine gets in a minute. What a row does not read costs the share `passing`
    of what it reads: next to nothing where kernels skip it, all of it where they do not.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        spread: float = 0.05,
        outliers: float = 0.0,
        drift: float = 0.0,
        passing: float = 0.06,
    ) -> None:
        self._random = Random(seed)
        self._spread, self._outliers, self._drift, self._passing = spread, outliers, drift, passing

    def true_s(self, ends: Sequence[int], used: int, now: float = 0.0) -> float:
        """Return what a step takes, noise left out. Its rows read as many cells as `ends` says, of those that are in use."""
        base_s = 0.012 + 0.022 * -(-len(ends) // 8) + 0.0004 * len(ends)
        attention_s = 0.0
        for read in ends:
            looked = read + self._passing * max(0, used - read)
            attention_s += (2e-5 * min(looked, 512) ** 0.5 + 1.1e-6 * max(0, looked - 512)) / 2
        return (base_s + attention_s) * (1 + self._drift * now / 60)

    def noise(self) -> float:
        """Return how many times as long the next step takes."""
        odd = 10 if self._random.random() < self._outliers else 1
        return self._random.lognormvariate(0, self._spread) * odd


class Cells:
    """A native memory that holds nothing: which cells are whose is the engine's own to know. Moving blocks takes time."""

    def __init__(self, load: "Load") -> None:
        self._load = load

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None: ...
    def remove_sequence(self, sequence_id: int) -> None: ...
    def cut_sequence(self, sequence_id: int, length: int) -> None: ...
    def clear_memory(self) -> None: ...
    def first_position(self, sequence_id: int) -> int:
        return 0

    def export_state(self, sequence_id: int) -> bytes:
        self._load.now += EXPORT_S
        return bytes(BLOCK_BYTES)

    def import_state(self, sequence_id: int, state: bytes) -> bool:
        self._load.now += IMPORT_S
        return True


@dataclass(eq=False)
class Asked:
    """One request and what became of it. Times are simulated seconds; those of all its choices' tokens are together."""

    request: GenerateRequest
    came_s: float
    choices: list[Choice] = field(default_factory=list)
    expected_s: float = 0.0
    """After it came."""
    refused: Failed | None = None
    token_s: list[float] = field(default_factory=list)
    ended: Finished | None = None
    ended_s: float | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.came_s

    @property
    def is_running(self) -> bool:
        return any(choice.leaf is not None for choice in self.choices)

    @property
    def is_whole(self) -> bool:
        tokens = self.request.n * (self.request.max_tokens or 0)
        return (
            self.ended is not None and set(self.ended.reasons) == {FinishReason.LENGTH} and len(self.token_s) == tokens
        )


@dataclass(frozen=True)
class Step:
    """What a step was. `readers` were being answered when it began, of the interactive class; `read` of them got a token in it."""

    at_s: float
    rows: int
    readers: int
    read: int
    prompt_rows: int
    true_s: float
    bare_s: float
    """What it took, and what it would have taken with nobody in it but the readers; noise left out."""


class Load:
    """Requests for one engine; `cells` is its context, `ids` how many run at once, `blocks` those that have room in RAM.

    With `checked` the engine's books are looked through after every step.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        cells: int = 4096,
        ids: int = 16,
        limits: Limits | None = None,
        blocks: int = 1000,
        checked: bool = False,
    ) -> None:
        self.now = 0.0
        self.machine = machine or Machine()
        self.steps: list[Step] = []
        self.asked: list[Asked] = []
        self.service: defaultdict[str, int] = defaultdict(int)
        """What each client has had, in the weights of the fair share."""
        self._checked = checked
        self.costs, limits, memory = CostModel(), limits or Limits(), Cells(self)
        store = BlockStore(blocks * BLOCK_BYTES, self.clock)
        held = KvCells(memory, cells=cells, sequence_ids=ids, before_drop=lambda leaf: kv_blocks.save_all_of(leaf))  # noqa: PLW0108  there are none yet
        kv_blocks = KvBlocks(memory, held, store, self.costs, SCRATCH, clock=self.clock)
        self.kv = SharedKv(held, kv_blocks, store, self.costs, clock=self.clock)
        budget = StepBudget(self.costs, max_rows=512, stall_s=limits.stall_s)
        self.scheduler = Scheduler(self.kv, budget, limits, clock=self.clock)
        admission = Admission(self.scheduler, self.kv, self.costs, budget, limits, self.clock)
        self.engine = Engine(
            _VOCAB, self, self.scheduler, admission, self.kv, self.costs, cells, LiteralConstraint, clock=self.clock
        )

    def clock(self) -> float:
        return self.now

    def ask(
        self,
        client: str = "",
        prompt_tokens: int = 50,
        answer_tokens: int = 20,
        *,
        shared: int = 0,
        n: int = 1,
        priority: Priority = Priority.INTERACTIVE,
        deadline_s: float | None = None,
        deterministic: bool = False,
        use_cache: bool = True,
    ) -> Asked:
        """Have a request come now; it begins with `shared` tokens that others begin with, too."""
        number = len(self.asked)
        prompt = [1] * shared + [2 + (number + place) % 250 for place in range(prompt_tokens - shared)]
        request = GenerateRequest(
            f"{number}",
            (Tokens(tuple(prompt)),),
            GREEDY,
            max_tokens=answer_tokens,
            ignore_eos=True,
            n=n,
            client=client,
            priority=priority,
            ttft_deadline_s=deadline_s,
            deterministic=deterministic,
            use_cache=use_cache,
        )
        asked = Asked(request, self.now)
        self.asked.append(asked)
        self._note(self.engine.submit(self.engine.prepare(request)))
        if asked.refused is None:
            answer = self.engine._answers[request.id]
            asked.choices, asked.expected_s = answer.open, answer.expected_at - self.now
        return asked

    def cancel(self, asked: Asked) -> None:
        self._note(self.engine.cancel(asked.request.id))

    def step(self) -> None:
        """Compute a step, and let its time go by."""
        before = self.now
        self._note(self.engine.step())
        if self.now == before:
            assert any(each.is_restoring for each in self.scheduler.running), "somebody is here, and nothing is done"
            self.now += 1e-3
        if self._checked:
            self.scheduler.check()

    def run(self, batch: Batch) -> Logits:
        """Compute a batch, as the engine's runner: every token is the same."""
        used = self.kv.used_cells
        readers = [
            each for each in self.scheduler.running if each.state is State.DECODE and self.scheduler.is_urgent(each)
        ]
        decoding = [piece for piece in batch.slices if piece.sequence.state is State.DECODE]
        read = sum(self.scheduler.is_urgent(piece.sequence) for piece in decoding)
        ends = [piece.sequence.computed + row for piece in batch.slices for row in range(1, piece.rows + 1)]
        true_s = self.machine.true_s(ends, used, self.now)
        bare_s = self.machine.true_s([each.computed + 1 for each in readers], used, self.now)
        self.steps.append(Step(self.now, batch.rows, len(readers), read, batch.rows - len(decoding), true_s, bare_s))
        for piece in batch.slices:
            weight = ANSWER_WEIGHT if piece.sequence.state is State.DECODE else PROMPT_WEIGHT
            self.service[piece.sequence.request.client] += weight * piece.rows
        self.now += true_s * self.machine.noise()
        logits = np.zeros((sum(piece.outputs for piece in batch.slices), ByteTable.size), np.float32)
        logits[:, ord("x")] = 1
        return logits

    def _note(self, emitted: list[Emitted]) -> None:
        for name, event in emitted:
            asked = self.asked[int(name)]
            assert asked.ended_s is None, "an event after the end"
            match event:
                case Chunk():
                    asked.token_s += [self.now] * len(event.token_ids)
                case Finished():
                    asked.ended, asked.ended_s = event, self.now
                case Failed():
                    asked.refused, asked.ended_s = event, self.now

    @property
    def is_busy(self) -> bool:
        return self.engine.busy

    def run_until(self, time_s: float) -> None:
        """Compute what there is to compute until a time."""
        while self.is_busy and self.now < time_s:
            self.step()
        self.now = max(self.now, time_s)

    def finish(self) -> None:
        """Compute until nothing is left. Raises AssertionError where somebody is never done."""
        for _ in range(MAX_STEPS):
            if not self.is_busy:
                return
            self.step()
        raise AssertionError(f"{len(self.scheduler.waiting)} still wait, {len(self.scheduler.running)} still run")
