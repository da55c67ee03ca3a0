"""What one step computes: slices of sequences, in row order."""

from dataclasses import dataclass
from typing import Self

from pinyon.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """The next `rows` uncomputed tokens of a sequence. With the last of its tokens it wants logits, which give the next one."""

    sequence: Sequence
    rows: int
    wants_logits: bool

    @classmethod
    def of(cls, sequence: Sequence, rows: int) -> Self:
        return cls(sequence, rows, rows == sequence.uncomputed)


@dataclass(frozen=True, slots=True)
class Batch:
    slices: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)

    @property
    def read(self) -> float:
        """How many cells each row reads, on average: those of its own sequence, as far as itself."""
        return sum(piece.rows * (piece.sequence.computed + (piece.rows + 1) / 2) for piece in self.slices) / self.rows
