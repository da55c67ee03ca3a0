"""What one step computes: slices of sequences, in row order."""

from dataclasses import dataclass
from typing import Self

from pinyon.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """The next `rows` tokens of a sequence: uncomputed ones, and after the last of these its `draft`.

    With the last of its tokens it wants logits, which give the next one, and with each drafted one.
    """

    sequence: Sequence
    rows: int
    outputs: int
    """How many of the last rows want logits."""
    draft: tuple[int, ...] = ()

    @classmethod
    def of(cls, sequence: Sequence, rows: int) -> Self:
        return cls(sequence, rows, int(rows == sequence.uncomputed))

    @classmethod
    def of_answer(cls, sequence: Sequence, draft: tuple[int, ...]) -> Self:
        """Return the slice of an answer that is being written, and of what may follow."""
        return cls(sequence, 1 + len(draft), 1 + len(draft), draft)

    @property
    def tokens(self) -> list[int]:
        """The tokens of its rows."""
        start = self.sequence.computed
        return [*self.sequence.tokens[start : start + self.rows - len(self.draft)], *self.draft]


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
