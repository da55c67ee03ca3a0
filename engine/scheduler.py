"""Who computes what in the next step. Knows counts of tokens and cells; never touches native code itself.

Cells are taken as they are used, so an answer of unknown length does not block others. When they run out, the newest
sequence gives its cells back and computes them again later; the oldest always fits, since no request is longer than
the context.
"""

from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from pinyon.engine.batch import Batch, Slice
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.sequence import ComingPrefix, Sequence, State
from pinyon.engine.shared_kv import SharedKv

MIN_SHARED_TOKENS = 16
"""A prompt waits for another one that is computing at least so many tokens that both begin with."""


class Scheduler:
    """Continuous batching: requests join and leave between steps.

    `chunk_rows` is how many rows of prompt a step may add to its decoding rows.
    """

    def __init__(self, kv: SharedKv, *, chunk_rows: int) -> None:
        self._kv = kv
        self._chunk_rows = chunk_rows
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order of admission."""

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> Batch:
        """Return the next step's rows: a row for each decoding sequence, then prompts in the order of admission.

        There are none while everyone waits for blocks to come back.
        """
        self._admit()
        while True:
            batch = Batch(tuple(self._slices()))
            if self._kv.make_room(batch.rows):
                return batch
            self._preempt(self.running[-1])

    def _admit(self) -> None:
        """Start the oldest ones that fit. One whose beginning is being computed by another waits for that: both get it sooner."""
        for sequence in [*self.waiting]:
            if self._prefix_is_coming(sequence):
                continue
            if not (self._has_room_for(sequence) and self._kv.begin(sequence)):
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)

    def _has_room_for(self, sequence: Sequence) -> bool:
        """Whether its tokens fit beside the others' with a chunk's room for everyone to grow. Alone it always fits."""
        if not self.running:
            return True
        if sequence.request.deterministic or self._is_deterministic:
            return False
        promised = sum(other.uncomputed + self._chunk_rows for other in self.running)
        return promised + len(sequence.tokens) + self._chunk_rows <= self._kv.room_for(sequence)

    @property
    def _is_deterministic(self) -> bool:
        """Whether a deterministic request runs, which nobody else does then."""
        return bool(self.running) and self.running[0].request.deterministic

    def _prefix_is_coming(self, sequence: Sequence) -> bool:
        if sequence.coming is None or sequence.coming.is_over:
            sequence.coming = self._coming_prefix(sequence)
        return sequence.coming is not None

    def _coming_prefix(self, sequence: Sequence) -> ComingPrefix | None:
        """Return the longest beginning that another one will have soon, if enough of it is not here yet."""
        readers = (other for other in self.running if other.is_reading)
        found = (ComingPrefix(other, self._kv.shared_tokens(sequence, other)) for other in readers)
        longest = max((each for each in found if not each.is_over), key=attrgetter("tokens"), default=None)
        if longest is None or longest.tokens < self._kv.known_tokens(sequence) + MIN_SHARED_TOKENS:
            return None
        self._kv.expect(longest.other, longest.tokens)
        return longest

    def _slices(self) -> Iterator[Slice]:
        """Yield whole chunks after the decoding rows; a prompt joins a started chunk only if all that is left of it fits."""
        prompts = []
        for sequence in self.running:
            state = sequence.state
            if state is State.DECODE:
                yield Slice.of(sequence, 1)
            elif state is State.PREFILL:
                prompts.append(sequence)
        chunk_rows = room = BLOCK_TOKENS if self._is_deterministic else self._chunk_rows
        for sequence in prompts:
            rows = min(sequence.uncomputed, sequence.until_stop, chunk_rows)
            if rows <= room:
                room -= rows
                yield Slice.of(sequence, rows)

    def _preempt(self, sequence: Sequence) -> None:
        self.release(sequence)
        sequence.lose_cells()
        self.waiting.appendleft(sequence)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it is; `keep` what it has computed for others, as long as there is room."""
        if sequence.leaf is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        if keep:
            self._kv.rest(sequence)
        else:
            self._kv.drop(sequence)

    def check(self) -> None:
        """Raise AssertionError if a sequence id or a cell is lost or held twice. Meant for idle time and tests."""
        self._kv.check()
