"""A vocabulary of bytes and a model that is a pure function of its KV: engine tests without native models.

`KvRunner` computes in a fake of llama.cpp's memory, checks that each sequence id is fed without gaps, and derives the next
token from all that it holds. So an answer shows whether a sequence saw exactly its own tokens: alone, batched, shared with
others, brought back from a block, or after a preemption.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from fake_disk import FakeDisk
from kv_compare import PrefixMemory, StatefulMemory, compare_blocks, compare_kv
from numpy.typing import NDArray

from pinyon.engine.admission import Admission
from pinyon.engine.answer_lengths import AnswerLengths
from pinyon.engine.batch import Batch
from pinyon.engine.block_store import BLOCK_TOKENS, BlockStore
from pinyon.engine.checkpoints import Checkpoints
from pinyon.engine.config import Limits
from pinyon.engine.cost_model import CostModel
from pinyon.engine.drafters import Drafter, Proposal
from pinyon.engine.engine import Emitted, Engine
from pinyon.engine.errors import NativeError
from pinyon.engine.events import Chunk, Event, Finished
from pinyon.engine.kv_blocks import KvBlocks
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.native import Logits, SpecialTokens
from pinyon.engine.request import GenerateRequest, Grammar
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.speculation import Speculation
from pinyon.engine.step_budget import Step, StepBudget
from pinyon.engine.vocab import Vocab

BOS, EOS, END_OF_TURN, USER_TAG = 256, 257, 258, 259
SPECIAL = {BOS: "<s>", EOS: "</s>", END_OF_TURN: "<|im_end|>", USER_TAG: "<tool>"}


class ByteTable:
    """Ids 0 to 255 are bytes; then come <s>, </s>, <|im_end|> (control) and <tool> (user-defined)."""

    size = 260

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.bos: int | None = BOS

    def is_eog(self, token: int) -> bool:
        return token in {EOS, END_OF_TURN}

    def special_tokens(self) -> SpecialTokens:
        return SpecialTokens(control=[BOS, EOS, END_OF_TURN], user_defined=[USER_TAG])

    def text(self, token: int) -> bytes:
        return SPECIAL[token].encode() if token in SPECIAL else bytes([token])

    def piece(self, token: int) -> bytes:
        return b"" if token in self.special_tokens().control else self.text(token)

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        matched = SPECIAL if parse_special else {USER_TAG: SPECIAL[USER_TAG]}
        tokens: list[int] = []
        while text:
            for token, spelling in matched.items():
                if text.startswith(spelling.encode()):
                    tokens.append(token)
                    text = text[len(spelling) :]
                    break
            else:
                tokens.append(text[0])
                text = text[1:]
        return tokens


Next = Callable[[str, Sequence[int], int], int | Logits]
"""(request id, all tokens so far, how many were generated) -> the likeliest next token, or a whole row of logits."""


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(array("i", tokens)).digest()


def hashed(_request_id: str, tokens: Sequence[int], _generated: int) -> int:
    """A letter that depends on every token so far."""
    return ord("a") + _digest(tokens)[0] % 26


def hashed_logits(_request_id: str, tokens: Sequence[int], _generated: int) -> Logits:
    """Several likely letters, and once in 128 times the end of turn, that depend on every token so far."""
    digest = _digest(tokens)
    row = np.full(ByteTable.size, -20, np.float32)
    row[ord("a") : ord("z") + 1] = np.frombuffer(digest[:26], np.uint8) / np.float32(100)
    row[END_OF_TURN] = 10 if digest[26] < 2 else -20
    return row


def scripted(**answers: Sequence[int]) -> Next:
    """Fixed token ids for each request id, then the end of turn."""

    def next_token(request_id: str, _tokens: Sequence[int], generated: int) -> int:
        answer = answers[request_id]
        return answer[generated] if generated < len(answer) else END_OF_TURN

    return next_token


class KvRunner:
    """Computes batches in a memory. `failing` are the numbers, from 0, of those whose decode fails, and leaves nonsense behind."""

    def __init__(
        self,
        memory: PrefixMemory,
        next_token: Next = hashed,
        failing: Collection[int] = (),
        ids_of: Callable[[int], tuple[int, ...]] = lambda sequence_id: (sequence_id,),
    ) -> None:
        self.memory = memory
        self.batches: list[list[tuple[str, int]]] = []
        self._next_token = next_token
        self._failing = failing
        self._ids_of = ids_of
        self._logits = np.empty((0, ByteTable.size), np.float32)

    def run(self, batch: Batch) -> Logits:
        assert batch.rows, "an empty batch"
        self._logits.fill(np.nan)  # like native memory, the last logits are gone
        self.batches.append([(piece.sequence.request.id, piece.rows) for piece in batch.slices])
        fails = len(self.batches) - 1 in self._failing
        rows = []
        for piece in batch.slices:
            sequence, leaf = piece.sequence, piece.sequence.leaf
            assert leaf is not None, "scheduled without a sequence id"
            ids, start = self._ids_of(leaf.sequence_id), sequence.computed
            tokens = [BOS] * piece.rows if fails else piece.tokens
            assert self.memory.last_position(leaf.sequence_id) == start - 1, "the sequence and its cells disagree"
            assert self.memory.compute(ids, tokens), "more cells used than there are"
            if piece.outputs and not fails:
                kv = self.memory.tokens_of(leaf.sequence_id)
                assert kv == [*sequence.tokens, *piece.draft]
                for end in range(len(kv) - piece.outputs + 1, len(kv) + 1):
                    generated = end - sequence.prompt_tokens
                    rows.append(self._row(self._next_token(sequence.request.id, kv[:end], generated)))
        if fails:
            raise NativeError("llama_decode returned -3")
        self._logits = np.array(rows, np.float32).reshape(len(rows), ByteTable.size)
        return self._logits

    @staticmethod
    def _row(wanted: int | Logits) -> Logits:
        if not isinstance(wanted, int):
            return wanted
        row = np.zeros(ByteTable.size, np.float32)
        row[wanted] = 10
        return row

    @property
    def used_cells(self) -> int:
        return len(self.memory.cells) - self.memory.free

    @property
    def computed(self) -> Counter[str]:
        """How many tokens were computed for each request."""
        return Counter(owner for batch in self.batches for owner, rows in batch for _ in range(rows))


BLOCK_BYTES = 4 * (2 + 2 * BLOCK_TOKENS)
"""The state of a whole block in the fake memory."""


def make_store(blocks: int = 1000, disk: FakeDisk | None = None, disk_blocks: int = 1000) -> BlockStore:
    """Return a store with room for that many blocks, and with what the disk has."""
    store = BlockStore(blocks * BLOCK_BYTES)
    if disk is not None:
        store.attach(disk, disk.headers, disk_blocks * BLOCK_BYTES)
    return store


def make_kv(
    memory: PrefixMemory,
    sequence_ids: int = 8,
    store: BlockStore | None = None,
    *,
    window: int = 0,
    costs: CostModel | None = None,
) -> SharedKv:
    cells = KvCells(
        memory,
        cells=len(memory.cells),
        sequence_ids=sequence_ids,
        window=window,
        needs_checkpoints=isinstance(memory, StatefulMemory),
        before_drop=lambda leaf: blocks.save_all_of(leaf),  # noqa: PLW0108  there are none yet
    )
    store, costs = store or BlockStore(0, memory.clock), costs or CostModel()
    scratch = 2 * sequence_ids
    checkpoints = Checkpoints(memory, store, costs, scratch) if isinstance(memory, StatefulMemory) else None
    blocks = KvBlocks(memory, cells, store, costs, scratch, checkpoints, memory.clock)
    return SharedKv(cells, blocks, store, costs, clock=memory.clock)


class OneChunk(Step):
    """Room for all that is decoded, and for a chunk of one block."""

    def has_room(self, length: int) -> bool:
        return True

    def chunk_rows(self, length: int) -> int:
        return BLOCK_TOKENS

    def seconds_with(self, rows: NDArray[np.intp], chosen: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.ones(len(rows))


class WholeChunks(StepBudget):
    """A chunk of one block for each step."""

    def __init__(self) -> None:
        super().__init__(CostModel(), max_rows=BLOCK_TOKENS + 64, stall_s=1.0)

    def step(self, lengths: Sequence[int], used: int) -> Step:
        return OneChunk(self, used, 1.0)


class NextChunk(AnswerLengths):
    """Expects a few tokens more, of every answer and always: contexts get too small often."""

    def rest(self, tokens: int) -> int:
        return BLOCK_TOKENS


class MadeEngine(NamedTuple):
    engine: Engine
    runner: KvRunner
    scheduler: Scheduler
    kv: SharedKv


def make_engine(
    next_token: Next = hashed,
    *,
    cells: int = 4096,
    sequence_ids: int = 8,
    adds_bos: bool = False,
    failing: Collection[int] = (),
    store: BlockStore | None = None,
    window: int = 0,
    is_stateful: bool = False,
    costs: CostModel | None = None,
    limits: Limits | None = None,
    budget: StepBudget | None = None,
    clock: Callable[[], float] | None = None,
    drafter: Drafter | None = None,
) -> MadeEngine:
    """Return an engine whose steps have a chunk of 64 rows, whatever it costs, unless a budget says otherwise; all that is drafted is taken.

    Its clock is the memory's, which goes on as it computes, unless there is another one.
    """
    costs, limits = costs or CostModel(), limits or Limits(long_share=1.0)
    memory = StatefulMemory(cells) if is_stateful else PrefixMemory(cells, window)
    kv = make_kv(memory, sequence_ids, store, window=window, costs=costs)
    runner = KvRunner(memory, next_token, failing, kv._cells.ids_of)
    budget = budget or WholeChunks()
    speculation = None if drafter is None else Speculation(drafter, outputs=64)
    scheduler = Scheduler(kv, budget, limits, NextChunk(), speculation, memory.clock)
    admission = Admission(scheduler, kv, costs, budget, limits, memory.clock)
    vocab = Vocab(ByteTable(adds_bos=adds_bos))
    engine = Engine(
        vocab,
        runner,
        scheduler,
        admission,
        kv,
        costs,
        cells,
        LiteralConstraint,
        clock=clock or memory.clock,
    )
    return MadeEngine(engine, runner, scheduler, kv)


class Oracle:
    """A drafter that knows the model, and is wrong now and then; a draft has up to `depth` tokens. `taken` says how many tokens followed at a time."""

    name = "oracle"

    def __init__(self, next_token: Next, *, depth: int = 8, wrong: float = 0.2, seed: int = 0) -> None:
        self._next_token, self._depth, self._wrong = next_token, depth, wrong
        self._random = Random(seed)
        self.taken: list[int] = []

    def propose(self, sequence: Choice, limit: int) -> Proposal:
        tokens = [*sequence.tokens]
        for _ in range(self._random.randint(0, min(limit, self._depth))):
            row = self._next_token(sequence.request.id, tokens, len(tokens) - sequence.prompt_tokens)
            likely = row if isinstance(row, int) else int(row.argmax())
            tokens.append(ord("?") if self._random.random() < self._wrong else likely)
        drafted = tokens[len(sequence.tokens) :]
        return Proposal(drafted, np.ones(len(drafted)))

    def took(self, sequence: Choice, tokens: Sequence[int]) -> None:
        self.taken.append(len(tokens))

    def ended(self, sequence: Choice) -> None: ...
    def forget(self) -> None: ...


class LiteralConstraint:
    """A grammar whose source is the only text that it allows."""

    open = 0
    """How many are not closed."""

    def __init__(self, grammar: Grammar) -> None:
        self._rest = grammar.source.encode()
        type(self).open += 1

    @property
    def is_complete(self) -> bool:
        return not self._rest

    def mask(self, logits: Logits, extra: Sequence[int] = ()) -> Logits:
        masked = np.full_like(logits, -np.inf)
        allowed = [self._rest[0], *extra]
        masked[allowed] = logits[allowed]
        return masked

    def accept(self, token: int) -> None:
        self.accept_text(bytes([token]))

    def accept_text(self, data: bytes) -> None:
        if not self._rest.startswith(data):
            raise NativeError(f"{data!r} does not fit the grammar")
        self._rest = self._rest[len(data) :]

    def copy(self) -> "LiteralConstraint":
        return LiteralConstraint(Grammar(self._rest.decode()))

    def close(self) -> None:
        type(self).open -= 1


def assert_idle(made: MadeEngine) -> None:
    """Raise AssertionError if a request holds anything, or the memory holds something else than is said of it."""
    engine, runner, scheduler, kv = made
    assert not engine.busy
    assert (kv.held_cells, scheduler.running, list(scheduler.waiting)) == (0, [], [])
    scheduler.check()
    compare_kv(kv, runner.memory)
    compare_blocks(kv)


def submit(engine: Engine, request: GenerateRequest) -> list[Emitted]:
    return engine.submit(engine.prepare(request))


def run_to_end(engine: Engine, *requests: GenerateRequest) -> dict[str, list[Event]]:
    """Submit requests together and step until all have ended; return each one's events."""
    emitted: list[Emitted] = []
    for request in requests:
        emitted += submit(engine, request)
    while engine.busy:
        emitted += engine.step()
    return {request.id: [event for owner, event in emitted if owner == request.id] for request in requests}


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Chunk))


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Chunk) for token in event.token_ids]


def tidied(made: MadeEngine) -> MadeEngine:
    """Let an engine do all that waits for idle time."""
    while made.engine.tidy() == 0:
        pass
    compare_blocks(made.kv)
    return made


def cached(end: Finished) -> tuple[int, int, int]:
    """Return a prompt's tokens by tier: in the context, in RAM, on disk."""
    assert end.cache.cached == end.usage.cached_tokens
    return end.cache.resident, end.cache.ram, end.cache.disk
