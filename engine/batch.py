"""What one step computes: slices of sequences, in row order."""

from dataclasses import dataclass

from pinyon.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """The next `rows` uncomputed tokens of a sequence."""

    sequence: Sequence
    rows: int

    @property
    def wants_logits(self) -> bool:
        """Whether the slice reaches the sequence's last token, whose logits give the next one."""
        return self.rows == self.sequence.uncomputed


@dataclass(frozen=True, slots=True)
class Batch:
    slices: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)
