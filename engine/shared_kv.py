"""The KV that requests share, as the step loop sees it: found and brought back for them, kept and stored behind them."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from pinyon.engine.batch import Batch
from pinyon.engine.block_store import BlockStore, Noted
from pinyon.engine.cache_report import COMPARED_TOKENS, Gap, Miss
from pinyon.engine.checkpoints import Checkpoints, block_end
from pinyon.engine.cost_model import CostModel
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Removed
from pinyon.engine.kv_blocks import KvBlocks, Missing
from pinyon.engine.kv_cells import KvCells
from pinyon.engine.kv_folder import DiskTier
from pinyon.engine.meters import Meters
from pinyon.engine.prefix_tree import Leaf, common_length
from pinyon.engine.request import GenerateRequest, without_traces
from pinyon.engine.sequence import Sequence as Choice
from pinyon.engine.step_cost import span_of

SAVE_SHARE: Final = 0.0025
"""The share of a step's time that may go into storing blocks."""
MAX_CREDIT_S: Final = 0.001
"""How much of that may be saved up: a prompt that comes after a long answer must not pay for all of it."""
TIDY_S: Final = 0.01
"""For how long blocks are stored in one go while there is nothing to compute."""
RESTORE_S: Final = 0.2
RESTORE_BESIDE_OTHERS_S: Final = 0.02
"""For how long blocks come back before a step: while nobody computes, and while somebody does."""

_ALONE: Final = "\0"
"""The namespace of sequences that share nothing, not even while they run; no request's."""
_CANONICAL: Final = "\0canonical"
"""What a namespace is followed by for KV that is the same to the bit however often it is computed."""


class SharedKv:
    """What a sequence has computed serves others from any token on, or, where blocks need checkpoints, from those on."""

    def __init__(
        self,
        cells: KvCells,
        blocks: KvBlocks,
        store: BlockStore,
        costs: CostModel,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cells = cells
        self._blocks = blocks
        self._store = store
        self._costs = costs
        self._checkpoints = blocks.checkpoints
        self._clock = clock
        self._save_credit_s = 0.0
        self._rent_s = 0.0
        """What one cell that was in use all the time has cost so far."""

    @property
    def cells(self) -> int:
        """The room for tokens."""
        return self._cells.cells

    @property
    def sequence_ids(self) -> int:
        """How many sequences may run at once."""
        return self._cells.sequence_ids

    @property
    def awaits_disk(self) -> bool:
        """Whether what is on disk is still to come."""
        return self._store.awaits_disk

    @property
    def used_cells(self) -> int:
        """The cells that hold something, for a request or left for others."""
        return self._cells.cells - self._cells.free

    def span(self, read: float) -> float:
        """Return the span (as in step_cost) of rows that read so many cells each."""
        return span_of(read, self.used_cells)

    @property
    def held_cells(self) -> int:
        """The cells that requests hold, without those that were left for others."""
        return self._cells.cells - self._cells.available

    def meters(self) -> Meters:
        """Return what is in the context and beside it, and how fast it is computed and brought back."""
        return Meters(
            cells=self._cells.cells,
            held_cells=self.held_cells,
            idle_cells=self._cells.available - self._cells.free,
            kv_ram_bytes=self._store.ram_bytes,
            kv_disk_bytes=self._store.disk_bytes,
            prefill_tokens_per_s=self._costs.prefill_tokens_per_s,
            restore_bytes_per_s=self._costs.restore_bytes_per_s,
        )

    def estimate(self, request: GenerateRequest, tokens: Sequence[int]) -> Estimate:
        """Return what `begin` would find for a request with this prompt, and what the rest would take. Changes nothing."""
        missing = self._expected(request, tokens)
        resident, ram, disk = missing.by_tier
        known = resident + ram + disk
        return Estimate(
            len(tokens),
            resident,
            ram,
            disk,
            compute_s=self._costs.alone_s(len(tokens) - known, span_of(known, self.used_cells + ram + disk)),
            restore_s=self._blocks.restore_s(missing.hits),
            is_measured=self._costs.is_measured,
        )

    def _expected(self, request: GenerateRequest, tokens: Sequence[int]) -> Missing:
        namespace, wants_blocks = request.namespace, request.use_cache and not request.private
        if request.deterministic and wants_blocks and self._checkpoints is None:
            return self._blocks.expected(namespace + _CANONICAL, tokens, 0, in_part=False)
        if not self._is_sharing(request):
            return Missing(0, 0, [])
        length, lacks_checkpoint = self._cells.found(namespace, self._sharable(request, tokens))
        if not wants_blocks:
            return Missing(length, length, [])
        return self._blocks.expected(namespace, tokens, length, lacks_checkpoint=lacks_checkpoint)

    def shares(self, sequence: Choice) -> bool:
        """Whether a sequence takes what others have in the context, and leaves to others what it has."""
        return self._is_sharing(sequence.request)

    @staticmethod
    def _is_sharing(request: GenerateRequest) -> bool:
        return request.use_cache and not request.deterministic

    def room_for(self, sequence: Choice) -> int:
        """Return how many tokens a sequence could have in all if it began now and no other one grew."""
        return self._cells.room_for(sequence.request.namespace, self._sharable(sequence.request, sequence.tokens))

    def known_tokens(self, sequence: Choice) -> int:
        """Return how many tokens a sequence would find in the context."""
        request = sequence.request
        return self._cells.match(request.namespace, self._sharable(request, sequence.tokens)).length

    def shared_cells(self, sequence: Choice) -> int:
        """Return how many of its tokens a sequence has in cells that are not its own, or would find so if it began now."""
        if sequence.leaf is None:
            return self.known_tokens(sequence)
        return sequence.leaf.length - sequence.own_cells

    def shared_tokens(self, sequence: Choice, other: Choice) -> int:
        """Return how many tokens a sequence could take from what another one reads, all but its last at most."""
        is_open = self.shares(sequence) and self.shares(other) and sequence.request.namespace == other.request.namespace
        common = common_length(sequence.tokens[:-1], other.tokens) if is_open else 0
        if self._checkpoints is None:
            return common
        return 0 if sequence.request.private or other.request.private else block_end(common)

    def expect(self, other: Choice, tokens: int) -> None:
        """Take note that somebody waits for the first tokens of a sequence."""
        if self._checkpoints is not None:
            other.stops.add(tokens)

    def begin(self, sequence: Choice) -> bool:
        """Admit a sequence with all of its beginning that is known; False while every sequence id is in use."""
        if sequence.request.deterministic:
            has_begun = self._begin_deterministic(sequence)
        elif self.shares(sequence):
            has_begun = self._begin_sharing(sequence)
        else:
            has_begun = self._begin_alone(sequence)
        if has_begun:
            self._let_go(self._costs.prefill_cell_s(sequence.unknown_tokens))
        return has_begun

    def _begin_sharing(self, sequence: Choice) -> bool:
        request, tokens = sequence.request, sequence.tokens
        match = self._cells.match(request.namespace, tokens[:-1])
        following, matched = match.following(COMPARED_TOKENS), match.length
        if request.private and match.idle_leaf is not None:
            self._blocks.save_all_of(match.idle_leaf)  # what an earlier request left in it; nothing that comes now
        leaf = self._cells.begin(request.namespace, self._sharable(request, tokens))
        if leaf is None:
            return False
        leaf.is_private, leaf.conversation = request.private, request.conversation
        known = leaf.length if self._checkpoints is None else matched
        if known < matched:  # its own sequence id was the only one that could be had
            gap = Gap(Miss.EVICTED, known)
        else:
            gap = Gap.between(following, tokens, known) if following else Gap(Miss.NEW, known)
        if request.private:
            sequence.admit(leaf, gap=Gap(Miss.DISABLED, leaf.length) if self._is_stored_beyond(leaf, sequence) else gap)
            return True
        restore = self._blocks.begin(leaf, request.namespace, tokens)
        sequence.admit(leaf, restore, gap)
        if self._checkpoints is not None:
            known = max(each.position for each in (gap, restore.gap) if each is not None)
            sequence.stops = self._checkpoints.positions(len(tokens), known)
        return True

    def _is_stored_beyond(self, leaf: Leaf, sequence: Choice) -> bool:
        """Whether blocks hold more of a sequence than its leaf does."""
        hits = self._store.find(sequence.request.namespace, sequence.tokens[:-1])
        return bool(hits) and hits[-1].end > leaf.length

    def _begin_deterministic(self, sequence: Choice) -> bool:
        """Start from an empty context. Only whole blocks come back, and only those of prompts that started so, too."""
        request = sequence.request
        self._cells.clear()
        leaf = self._cells.begin(_ALONE, ())
        assert leaf is not None, "every sequence id is free"
        leaf.conversation = request.conversation
        wants_blocks = request.use_cache and not request.private
        if wants_blocks and self._checkpoints is None:
            namespace = request.namespace + _CANONICAL
            sequence.admit(leaf, self._blocks.begin(leaf, namespace, sequence.tokens, in_part=False))
        else:
            sequence.admit(leaf, gap=Gap(Miss.UNAVAILABLE if wants_blocks else Miss.DISABLED, 0))
        return True

    def _begin_alone(self, sequence: Choice) -> bool:
        leaf = self._cells.begin(_ALONE, ())
        if leaf is not None:
            sequence.admit(leaf, gap=Gap(Miss.DISABLED, 0))
        return leaf is not None

    def restore(self, running: Sequence[Choice]) -> list[Choice]:
        """Bring blocks back for the sequences that wait for some; return these. With nothing to compute, wait for a file."""
        waiting = [each for each in running if each.is_restoring]
        is_alone = len(waiting) == len(running)
        until = self._clock() + (RESTORE_S if is_alone else RESTORE_BESIDE_OTHERS_S)
        for number, sequence in enumerate(waiting):
            if number and self._clock() >= until:
                return waiting[:number]
            assert sequence.restore is not None, "it waits for that"
            self._blocks.restore(sequence.restore, until - self._clock(), may_wait=is_alone)
        return waiting

    def make_room(self, cells: int) -> bool:
        """Drop what no request holds until so many cells are free; tell whether they are."""
        return self._cells.make_room(cells)

    def take(self, batch: Batch, seconds: float) -> None:
        """Take note of what a batch computed, and for how long. Of drafts nothing is kept until they are `checked`."""
        self._costs.measure_step(batch.rows, self.span(batch.read), seconds)
        self._rent_s += self._costs.cell_s(batch.rows)
        for piece in batch.slices:
            sequence, leaf = piece.sequence, piece.sequence.leaf
            assert leaf is not None, "only admitted sequences are scheduled"
            self._cells.grow(leaf, sequence.tokens[leaf.length : leaf.length + piece.rows - len(piece.draft)])
            if leaf.length in sequence.stops:
                started = self._clock()
                self._blocks.take_checkpoint(leaf)
                self._save_credit_s = max(self._save_credit_s - (self._clock() - started), -MAX_CREDIT_S)
            if sequence.request.deterministic and piece.outputs:
                self._blocks.save_all_of(leaf)  # the prompt; an answer's tokens are not computed in blocks
        self._save_credit_s = min(self._save_credit_s + SAVE_SHARE * seconds, MAX_CREDIT_S)

    def checked(self, sequence: Choice, accepted: int) -> None:
        """Keep the KV of so many drafted tokens, which are a sequence's own now, and none of the others."""
        assert sequence.leaf is not None, "it was computed"
        length = sequence.leaf.length
        self._cells.grow(sequence.leaf, sequence.tokens[length : length + accepted])
        self._cells.cut(sequence.leaf)

    def rest(self, sequence: Choice) -> None:
        """Keep what a sequence leaves behind, as long as there is room."""
        assert sequence.leaf is not None, "it was admitted"
        if self.shares(sequence) and not sequence.leaf.lacks_checkpoint:
            sequence.leaf.rent_from_s, sequence.leaf.used_at = self._rent_s, time.time()
            self._cells.rest(sequence.leaf)
        else:
            self._blocks.save_all_of(sequence.leaf)
            self._cells.drop(sequence.leaf)

    def drop(self, sequence: Choice) -> None:
        """Forget what a sequence has computed: it may be wrong."""
        assert sequence.leaf is not None, "it was admitted"
        self._blocks.forget(sequence.leaf)
        self._cells.drop(sequence.leaf)

    def leave_no_trace(self, sequence: Choice) -> None:
        """Have a sequence that goes on store nothing more, and give up at its end what it holds."""
        sequence.request = without_traces(sequence.request)
        if sequence.restore is not None:
            self._blocks.give_up(sequence.restore, Miss.DISABLED)
        if sequence.leaf is not None:
            self._blocks.forget(sequence.leaf)
            sequence.leaf.is_private, sequence.leaf.conversation = True, None

    def forget(self, conversation: str) -> Removed:
        """Forget what only this conversation left; those of its sequences that go on `leave_no_trace`."""
        self._drop_idle(lambda leaf: leaf.conversation == conversation)
        return self._store.forget(conversation)

    def forget_before(self, time_s: float) -> Removed:
        """Forget what was left before a time (seconds since 1970)."""
        self._drop_idle(lambda leaf: leaf.used_at < time_s)
        return self._store.forget_before(time_s)

    def _drop_idle(self, is_chosen: Callable[[Leaf], bool]) -> None:
        for leaf in filter(is_chosen, self._cells.idle()):
            self._blocks.forget(leaf)
            self._cells.drop(leaf)

    def forgotten(self) -> Future[None]:
        """Return what is done when the files of what was forgotten have gone. It raises OSError if one cannot be deleted."""
        return self._store.settled()

    def take_noted(self) -> Noted:
        """Return which blocks of which conversations were stored or used since the last call."""
        return self._store.take_noted()

    def save(self) -> None:
        """Store blocks as far as the steps so far have paid for it, and let go what has cost more than it is worth."""
        self._let_go()
        if self._save_credit_s > 0:
            started = self._clock()
            self._blocks.save(self._save_credit_s)
            self._store.work(is_idle=False)
            self._save_credit_s -= self._clock() - started

    def _let_go(self, coming_rent_s: float = 0.0) -> None:
        """Drop what is idle once its cells have slowed others for longer than bringing it back takes, or are just about to.

        Whoever keeps something that he could rent, until the rent has reached its price, pays at most twice the least; and no rent
        where he knows that it will. So a long new prompt gets the first cells of the context.
        """
        rent_s = self._rent_s + coming_rent_s
        while (leaf := self._cells.oldest_idle()) is not None:
            if rent_s - leaf.rent_from_s < self._blocks.return_s(leaf) or self._blocks.save_some_of(leaf):
                return
            self._cells.evict(leaf)

    def tidy(self) -> float | None:
        """Do a little of what waits for idle time; return in how many seconds there is more to do, None for nothing."""
        self._blocks.save(TIDY_S)
        self._store.work()
        return 0.0 if self._blocks.has_unsaved else self._store.next_work_s()

    def use_disk(self, tier: DiskTier | None) -> None:
        """Keep blocks on disk from now on; None where that was expected, and cannot be."""
        self._store.awaits_disk = False
        if tier is not None:
            self._store.attach(tier.disk, tier.found, tier.cap_bytes, tier.noted, tier.elsewhere)

    def close(self) -> None:
        """Store what the sequences hold, and return when the disk has it."""
        self._blocks.save(float("inf"))
        self._store.close()

    def check(self) -> None:
        """Raise AssertionError where cells or sequence ids are lost or held twice."""
        self._cells.check()

    def _sharable(self, request: GenerateRequest, tokens: Sequence[int]) -> Sequence[int]:
        """Return the beginning of a request's tokens of which all but the last can be taken from others."""
        if not self._is_sharing(request):
            return ()
        if self._checkpoints is None:
            return tokens
        return tokens[: self._reach(self._checkpoints, request, tokens[:-1]) + 1]

    def _reach(self, checkpoints: Checkpoints, request: GenerateRequest, tokens: Sequence[int]) -> int:
        """Return up to where there is a state that a request can go on from."""
        found = [] if request.private else checkpoints.find(request.namespace, tokens)
        return max(self._cells.resumable(request.namespace, tokens), found[-1].end if found else 0)
