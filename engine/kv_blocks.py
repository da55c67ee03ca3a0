"""Blocks into and out of the context: what a request gets back, and what it leaves for others.

A block leaves through a scratch sequence: its cells are shared with it, and its state is exported. It comes back the same way.
The scratch id is always the same one, since the state holds it: the same cells give the same bytes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pinyon.engine.block import BLOCK_TOKENS, Block, Payload
from pinyon.engine.block_file import BlockDamagedError
from pinyon.engine.block_store import BlockStore, Hit
from pinyon.engine.cache_report import COMPARED_TOKENS, Gap, Miss
from pinyon.engine.checkpoints import Checkpoints
from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import NativeError
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.prefix_tree import Leaf

READ_AHEAD: Final = 4
"""How many files are read while the engine works."""
WAIT_S: Final = 0.05
"""How long the engine waits for a file when it has nothing else to do."""
UNNOTICED_S: Final = 0.02
"""So much longer than computing a restore may take: nobody notices, and what is not computed leaves the machine to others."""


class StateMemory(Protocol):
    """The native side; native.Context is one."""

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None: ...
    def remove_sequence(self, sequence_id: int) -> None: ...
    def export_state(self, sequence_id: int) -> Payload: ...
    def import_state(self, sequence_id: int, state: Payload) -> bool: ...


@dataclass(eq=False, slots=True)
class Restore:
    """What a request still gets back: blocks that follow one another, and the bytes of the first ones; `gap` is what comes then.

    From `patient_until` on, computing the tokens is quicker than a file that is not there yet.
    """

    leaf: Leaf
    hits: deque[Hit]
    patient_until: float = 0.0
    reads: "deque[Payload | Future[memoryview] | None]" = field(default_factory=deque)
    gap: Gap | None = None
    ram_tokens: int = 0
    disk_tokens: int = 0
    moved_bytes: int = 0
    moved_s: float = 0.0
    """What came back since that was measured last, and how long it took."""

    @property
    def is_over(self) -> bool:
        return not self.hits

    @property
    def by_tier(self) -> tuple[int, int]:
        """Tokens that came back from RAM, and from disk; none until the checkpoint is back to which they lead."""
        return (0, 0) if self.leaf.lacks_checkpoint else (self.ram_tokens, self.disk_tokens)

    def count(self, hit: Hit, tokens: int, *, is_file: bool) -> None:
        """Count tokens that came back."""
        self.ram_tokens, self.disk_tokens = _counted((self.ram_tokens, self.disk_tokens), hit, tokens, is_file=is_file)


def _counted(by_tier: tuple[int, int], hit: Hit, tokens: int, *, is_file: bool) -> tuple[int, int]:
    """Add tokens to those from RAM or from disk. With a checkpoint come all before it, if from nowhere slower then from there."""
    ram, disk = by_tier
    if not hit.block.tokens:
        disk = hit.end if is_file else disk
        return hit.end - disk, disk
    return (ram, disk + tokens) if is_file else (ram + tokens, disk)


class Missing(NamedTuple):
    """The first `kept` tokens of a sequence stay, `usable` of them without what `hits` bring back."""

    kept: int
    usable: int
    hits: list[Hit]

    @property
    def by_tier(self) -> tuple[int, int, int]:
        """Tokens in the context, and those from RAM and from disk, once all has come back."""
        if not self.hits:
            return self.usable, 0, 0
        position, by_tier = self.kept, (0, 0)
        for hit in self.hits:
            by_tier = _counted(by_tier, hit, hit.end - position, is_file=hit.block.payload is None)
            position = hit.end
        return position - sum(by_tier), *by_tier


class KvBlocks:
    """`scratch` is a sequence id that nothing else uses but `checkpoints`, which are there where blocks are not the whole state."""

    def __init__(
        self,
        memory: StateMemory,
        cells: KvCells,
        store: BlockStore,
        costs: CostModel,
        scratch: int,
        checkpoints: Checkpoints | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.checkpoints = checkpoints
        self._memory = memory
        self._cells = cells
        self._store = store
        self._costs = costs
        self._scratch = scratch
        self._clock = clock
        self._bytes_per_token = 0
        """Of what the store takes; 0 while it takes nothing."""
        self._stored: dict[Leaf, Block] = {}
        """How far the tokens of each sequence are in the store: its last block. Sequences that left nothing to do are not here."""

    def begin(self, leaf: Leaf, namespace: str, tokens: Sequence[int], *, in_part: bool = True) -> Restore:
        """Keep what a request computes from now on, and return what it gets back beyond what its leaf holds.

        The last block may come back `in_part`, if that is right.
        """
        hits = self._usable(namespace, tokens, in_part=in_part)
        found = self._found(namespace, tokens, hits)
        held = [hit.block for hit in hits if hit.end <= leaf.length and hit.tokens == BLOCK_TOKENS]
        self._stored[leaf] = held[-1] if held else self._store.root(namespace)
        for hit in [*hits, *found[-1:]]:
            if hit.tokens == len(hit.block.tokens):
                self._note(leaf, hit.block)
        missing = self._missing(found, leaf.length, lacks_checkpoint=leaf.lacks_checkpoint)
        if not self._is_worth_it(missing):
            restore = Restore(leaf, deque())
            self.give_up(restore, Miss.NOT_WORTH_IT)
            return restore
        if missing.kept < leaf.length:
            self._start_again(leaf)
        if missing.hits:
            leaf.lacks_checkpoint = self.checkpoints is not None
            self._store.touch(missing.hits[-1].block)
        patient_until = self._clock() + self._compute_s(missing) + UNNOTICED_S
        known = hits if in_part else self._store.find(namespace, tokens[:-1])
        return Restore(leaf, deque(missing.hits), patient_until, gap=self._gap(leaf, known, namespace, tokens))

    def expected(
        self,
        namespace: str,
        tokens: Sequence[int],
        length: int,
        *,
        lacks_checkpoint: bool = False,
        in_part: bool = True,
    ) -> Missing:
        """Return what `begin` would decide for a sequence that holds the first `length` tokens. Changes nothing."""
        hits = self._usable(namespace, tokens, in_part=in_part)
        missing = self._missing(self._found(namespace, tokens, hits), length, lacks_checkpoint=lacks_checkpoint)
        return missing if self._is_worth_it(missing) else Missing(missing.usable, missing.usable, [])

    def _found(self, namespace: str, tokens: Sequence[int], hits: list[Hit]) -> list[Hit]:
        """Return what could come back of the beginning of a prompt: its blocks, or those that lead to its last checkpoint."""
        return hits if self.checkpoints is None else self.checkpoints.find(namespace, tokens[:-1])

    def _missing(self, found: Sequence[Hit], length: int, *, lacks_checkpoint: bool) -> Missing:
        """Return what a sequence of this length lacks of what was found; what does not lead to a checkpoint is of no use to it."""
        reach = found[-1].end if found else 0
        kept = 0 if lacks_checkpoint and reach < length else length
        usable = 0 if lacks_checkpoint else length
        if reach <= usable:
            return Missing(kept, usable, [])
        return Missing(kept, usable, [hit for hit in found if hit.end > kept or not hit.block.tokens])

    def _is_worth_it(self, missing: Missing) -> bool:
        """Whether computing would not be noticeably quicker."""
        return not missing.hits or self.restore_s(missing.hits) < self._compute_s(missing) + UNNOTICED_S

    def _compute_s(self, missing: Missing) -> float:
        return self._costs.prefill_s(missing.hits[-1].end - missing.usable) if missing.hits else 0.0

    def _start_again(self, leaf: Leaf) -> None:
        *_, root = self._stored[leaf].chain()
        self._stored[leaf] = root
        self._cells.empty(leaf)

    def _usable(self, namespace: str, tokens: Sequence[int], *, in_part: bool) -> list[Hit]:
        """Return the blocks that hold a prompt's beginning. Of the last a part may be used if it may come back `in_part`.

        Where the window is so narrow that blocks hold their ends' alone, it may not.
        """
        hits = self._store.find(namespace, tokens[:-1])
        has_ends_only = 0 < self._cells.window < BLOCK_TOKENS
        if hits and hits[-1].end < hits[-1].block.end and (has_ends_only or not in_part):
            return hits[:-1]
        return hits

    def _gap(self, leaf: Leaf, hits: Sequence[Hit], namespace: str, tokens: Sequence[int]) -> Gap:
        """Return why the store has nothing after its hits, and after what the leaf holds."""
        last = hits[-1] if hits else Hit(self._store.root(namespace), 0)
        whole = last.block if last.tokens == BLOCK_TOKENS else last.block.parent or last.block
        position = max(leaf.length, last.end)
        if self._store.awaits_disk:
            return Gap(Miss.NOT_READY, position)
        if position < whole.end + BLOCK_TOKENS:
            miss = self._store.why_missing(whole, tokens[whole.end : whole.end + BLOCK_TOKENS])
            if miss is not Miss.NEW:
                return Gap(miss, position)
        following = last.following(COMPARED_TOKENS)
        return Gap.between(following, tokens, last.end) if following else Gap(Miss.NEW, last.end)

    def restore_s(self, hits: Iterable[Hit]) -> float:
        """Return how long it takes to bring blocks back."""
        return self._costs.restore_s(sum(hit.block.payload_bytes for hit in hits))

    def restore(self, restore: Restore, budget_s: float, *, may_wait: bool) -> None:
        """Bring back what is at hand, one block at least; `may_wait` for the first file if nothing is.

        Whatever goes wrong ends the restore, and the rest of the prompt is computed.
        """
        until = self._clock() + budget_s
        while restore.hits:
            started, start = self._clock(), restore.leaf.length
            self._read_ahead(restore)
            is_file = isinstance(restore.reads[0], Future)
            state = self._next_state(restore, WAIT_S if may_wait else 0.0)
            if state is None:
                return
            if (miss := self._put_back(restore.leaf, restore.hits[0], state)) is not None:
                self.give_up(restore, miss)
                return
            restore.count(restore.hits.popleft(), restore.leaf.length - start, is_file=is_file)
            restore.moved_bytes += len(state)
            restore.moved_s += self._clock() - started
            if not restore.leaf.lacks_checkpoint:  # blocks may be empty: then all bytes come with it
                self._costs.measure_restore(restore.moved_bytes, restore.moved_s)
                restore.moved_bytes, restore.moved_s = 0, 0.0
            if self._clock() >= until:
                return

    def _read_ahead(self, restore: Restore) -> None:
        while len(restore.reads) < min(READ_AHEAD, len(restore.hits)):
            restore.reads.append(self._store.read(restore.hits[len(restore.reads)].block))

    def _next_state(self, restore: Restore, wait_s: float) -> Payload | None:
        """Return the first block's bytes; None where they are not there yet, or never will be: then the restore is over."""
        read = restore.reads[0]
        if isinstance(read, Future):
            wait([read], wait_s)
            if not read.done():
                if self._clock() >= restore.patient_until:
                    self.give_up(restore, Miss.NOT_WORTH_IT)
                return None
            try:
                read = read.result()
            except (OSError, BlockDamagedError):
                self._store.lose(restore.hits[0].block)
                self.give_up(restore, Miss.UNREADABLE)
                return None
        restore.reads.popleft()
        if read is None:
            self.give_up(restore, Miss.EVICTED)
        return read

    def give_up(self, restore: Restore, miss: Miss) -> None:
        """Bring nothing more back; what has come back is of use only with its checkpoint."""
        restore.hits.clear()
        restore.gap = Gap(miss, restore.leaf.length)
        if restore.leaf.lacks_checkpoint:
            restore.ram_tokens = restore.disk_tokens = 0
            self._start_again(restore.leaf)

    def _put_back(self, leaf: Leaf, hit: Hit, state: Payload) -> Miss | None:
        """Add a block's tokens to a sequence; return why that could not be done."""
        block, start = hit.block, leaf.length
        if not block.tokens:
            return self._put_checkpoint_back(leaf, block, state)
        if not self._cells.make_room(len(block.tokens)):
            return Miss.NO_ROOM
        if not self._memory.import_state(self._scratch, state):
            self._memory.remove_sequence(self._scratch)  # it may have been filled in part
            self._store.lose(block)
            return Miss.UNREADABLE
        for sequence_id in self._cells.ids_of(leaf.sequence_id):
            self._memory.copy_sequence(self._scratch, sequence_id, start, hit.end)
        self._memory.remove_sequence(self._scratch)
        self._cells.grow(leaf, block.tokens[start - block.start : hit.tokens])
        if hit.tokens == BLOCK_TOKENS:
            self._stored[leaf] = block
        return None

    def _put_checkpoint_back(self, leaf: Leaf, checkpoint: Block, state: Payload) -> Miss | None:
        assert self.checkpoints is not None, "it was found there"
        leaf.lacks_checkpoint = not self.checkpoints.put_back(leaf, state)
        if leaf.lacks_checkpoint:
            self._store.lose(checkpoint)
        return Miss.UNREADABLE if leaf.lacks_checkpoint else None

    def save(self, budget_s: float) -> None:
        """Store blocks that are complete, and the ends of sequences that no request holds, for so long."""
        until = self._clock() + budget_s
        for leaf in [*self._stored]:
            while self._is_due(leaf):
                self._store_next(leaf)
                if self._clock() >= until:
                    return

    @property
    def has_unsaved(self) -> bool:
        return any(map(self._is_due, self._stored))

    def save_some_of(self, leaf: Leaf) -> bool:
        """Store one block of a sequence that nobody holds, if there is one to store; tell whether more are left."""
        if self._is_due(leaf):
            self._store_next(leaf)
        return self._is_due(leaf)

    def return_s(self, leaf: Leaf) -> float:
        """Return what it costs to have a token of a sequence back once it has gone."""
        if leaf.is_private or not self._bytes_per_token:
            return self._costs.prefill_s(1)
        checkpoint_s = 0.0 if self.checkpoints is None else self.checkpoints.return_s(leaf)
        return min(self._costs.prefill_s(1), self._costs.restore_s(self._bytes_per_token) + checkpoint_s)

    def save_all_of(self, leaf: Leaf) -> None:
        """Store what a sequence holds before it goes."""
        while self._is_due(leaf):
            self._store_next(leaf)
        self.forget(leaf)

    def take_checkpoint(self, leaf: Leaf) -> None:
        """Store all of a sequence that ends with a whole block; its checkpoint can be taken only now."""
        assert self.checkpoints is not None, "nobody has asked for one"
        while self._is_due(leaf):
            self._store_next(leaf)
        if (last := self._stored.get(leaf)) is not None:
            self._keep_checkpoint(self.checkpoints, leaf, last)

    def forget(self, leaf: Leaf) -> None:
        """Store nothing more of a sequence."""
        self._stored.pop(leaf, None)

    def _is_due(self, leaf: Leaf) -> bool:
        """Whether there is something to store of a sequence: a whole block, or its end once no request holds it."""
        if leaf not in self._stored:
            return False
        tokens = leaf.length - self._stored[leaf].end
        return tokens >= BLOCK_TOKENS or (not leaf.in_use and (tokens > 0 or self.checkpoints is not None))

    def _store_next(self, leaf: Leaf) -> None:
        before = self._stored[leaf]
        tokens = tuple(leaf.tokens(before.end)[:BLOCK_TOKENS])
        block = (before.child_with(tokens) or self._export(leaf, before, tokens)) if tokens else before
        if block is not None and tokens and block.tokens == tokens:
            self._note(leaf, block)
        if block is not None and (leaf.in_use or block.end < leaf.length):
            self._stored[leaf] = block
            return
        if self.checkpoints is not None and block is not None and block.tokens and block.end == leaf.length:
            self._keep_checkpoint(self.checkpoints, leaf, block)
        self.forget(leaf)

    def _keep_checkpoint(self, checkpoints: Checkpoints, leaf: Leaf, block: Block) -> None:
        checkpoints.take(leaf, block)
        if block.checkpoint is not None:
            self._note(leaf, block.checkpoint)

    def _note(self, leaf: Leaf, block: Block) -> None:
        if leaf.conversation is not None:
            self._store.note(block, leaf.conversation)

    def _export(self, leaf: Leaf, before: Block, tokens: Sequence[int]) -> Block | None:
        start, end = before.end, before.end + len(tokens)
        self._memory.copy_sequence(leaf.sequence_id, self._scratch, start, end)
        try:
            state = self._state_of_scratch()
        except NativeError:  # nothing is kept then, and nothing else is lost
            return None
        finally:
            self._memory.remove_sequence(self._scratch)
        block = self._store.add(before, tokens, state, self._costs.prefill_s(len(tokens)))
        self._bytes_per_token = len(state) // len(tokens) if block is not None else 0
        return block

    def _state_of_scratch(self) -> Payload:
        return self._memory.export_state(self._scratch) if self.checkpoints is None else self.checkpoints.export_cells()
