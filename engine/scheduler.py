"""Who computes what in the next step. Knows counts of tokens and cells; never touches native code itself.

Cells are taken as they are used, so an answer of unknown length does not block others. When they run out, the newest
sequence gives its cells back and computes them again later; the oldest always fits, since no request is longer than
the context.
"""

from collections import deque
from collections.abc import Callable, Iterable

from pinyon.engine.batch import Batch, Slice
from pinyon.engine.sequence import Sequence, State


class Scheduler:
    """Continuous batching: requests join and leave between steps.

    `cells` is the room for tokens, `sequence_ids` how many sequences may hold cells at once, `chunk_rows` how many rows
    of prompt a step may add to its decoding rows. `free_cells_of(id)` gives a sequence's cells back.
    """

    def __init__(self, *, cells: int, sequence_ids: int, chunk_rows: int, free_cells_of: Callable[[int], None]) -> None:
        self._cells = cells
        self._chunk_rows = chunk_rows
        self._free_cells_of = free_cells_of
        self._sequence_ids = sequence_ids
        self._free_ids = list(range(sequence_ids))
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order of admission."""

    @property
    def used_cells(self) -> int:
        return sum(sequence.computed for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> Batch:
        """Return the next step's rows: a row for each decoding sequence, then prompts in the order of admission."""
        self._admit()
        while True:
            batch = Batch((*self._decode(), *self._prefill()))
            if batch.rows <= self._cells - self.used_cells:
                return batch
            self._preempt(self.running[-1])

    def _admit(self) -> None:
        while self.waiting and self._free_ids and self._has_room_for(self.waiting[0]):
            sequence = self.waiting.popleft()
            sequence.admit(self._free_ids.pop())
            self.running.append(sequence)

    def _has_room_for(self, sequence: Sequence) -> bool:
        """Whether its tokens fit beside the others' with a chunk's room for everyone to grow. Alone it always fits."""
        if not self.running:
            return True
        promised = sum(len(other.tokens) + self._chunk_rows for other in self.running)
        return promised + len(sequence.tokens) + self._chunk_rows <= self._cells

    def _decode(self) -> Iterable[Slice]:
        return (Slice(sequence, 1) for sequence in self.running if sequence.state is State.DECODE)

    def _prefill(self) -> Iterable[Slice]:
        """Yield whole chunks; a prompt joins a started chunk only if all that is left of it fits."""
        room = self._chunk_rows
        for sequence in self.running:
            rows = min(sequence.uncomputed, self._chunk_rows)
            if sequence.state is State.PREFILL and rows <= room:
                room -= rows
                yield Slice(sequence, rows)

    def _preempt(self, sequence: Sequence) -> None:
        self.release(sequence)
        sequence.lose_cells()
        self.waiting.appendleft(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free what it holds."""
        if sequence.sequence_id is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._free_cells_of(sequence.sequence_id)
        self._free_ids.append(sequence.sequence_id)

    def check(self) -> None:
        """Raise AssertionError if a sequence id or a cell is lost or held twice. Cheap; meant for idle time and tests."""
        held = [sequence.sequence_id for sequence in self.running if sequence.sequence_id is not None]
        assert sorted([*held, *self._free_ids]) == list(range(self._sequence_ids)), (
            "a sequence id is lost or held twice"
        )
        assert 0 <= self.used_cells <= self._cells, f"{self.used_cells} cells used of {self._cells}"
