"""A fake of llama.cpp's unified KV memory: cells with a token, its position, and the sequence ids that hold them.

It is strict where llama.cpp lets a mistake pass: a sequence never has two cells for one position. As in llama.cpp, a cell is
free when nobody holds it. With a `window` it has llama.cpp's fault: a cell outside the window that one sequence id alone
holds serves others, too, and with it that id loses all positions before (llama_kv_cache::find_slot and apply_ubatch).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cell:
    position: int = -1
    token: int = -1
    ids: set[int] = field(default_factory=set)


class UnifiedMemory:
    def __init__(self, cells: int, window: int = 0) -> None:
        self.cells = [Cell() for _ in range(cells)]
        self._window = window

    @property
    def free(self) -> int:
        return sum(not cell.ids for cell in self.cells)

    def held_by(self, sequence_id: int) -> list[Cell]:
        """Return a sequence's cells by position."""
        return sorted((cell for cell in self.cells if sequence_id in cell.ids), key=lambda cell: cell.position)

    def tokens_of(self, sequence_id: int) -> list[int]:
        """Return a sequence's tokens; AssertionError if a position is missing."""
        held = self.held_by(sequence_id)
        assert [cell.position for cell in held] == list(range(len(held))), f"sequence {sequence_id} has gaps"
        return [cell.token for cell in held]

    def first_position(self, sequence_id: int) -> int:
        """Return -1 for a sequence without cells."""
        return min((cell.position for cell in self.held_by(sequence_id)), default=-1)

    def last_position(self, sequence_id: int) -> int:
        return max((cell.position for cell in self.held_by(sequence_id)), default=-1)

    def compute(self, ids: Sequence[int], tokens: Sequence[int]) -> bool:
        """Go on with sequences as a decode does, each row for all of them; False, and no change, where room is missing."""
        last = {self.last_position(sequence_id) for sequence_id in ids}
        assert len(last) == 1, f"the sequences {ids} end at different positions"
        return self._place(ids, [*enumerate(tokens, last.pop() + 1)])

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        taken = {cell.position for cell in self.held_by(target)}
        for cell in self.held_by(source):
            if start <= cell.position < end:
                assert cell.position not in taken, f"sequence {target} has position {cell.position} already"
                cell.ids.add(target)

    def remove_sequence(self, sequence_id: int) -> None:
        for cell in self.cells:
            cell.ids.discard(sequence_id)

    def cut_sequence(self, sequence_id: int, length: int) -> None:
        for cell in self.cells:
            if cell.position >= length:
                cell.ids.discard(sequence_id)

    def clear_memory(self) -> None:
        for cell in self.cells:
            cell.ids.clear()

    def export_state(self, sequence_id: int) -> bytes:
        """Return the id, the number of cells, then position and token of each; the same for any place of the cells."""
        held = self.held_by(sequence_id)
        pairs = [value for cell in held for value in (cell.position, cell.token)]
        return array("i", [sequence_id, len(held), *pairs]).tobytes()

    def import_state(self, sequence_id: int, state: bytes) -> bool:
        """Replace what the sequence holds; False, and nothing held, for truncated bytes or too few cells."""
        self.remove_sequence(sequence_id)
        values = array("i", bytes(state[: len(state) // 4 * 4]))
        if len(state) < 8 or len(state) != 4 * (2 + 2 * values[1]):
            return False
        return self._place([sequence_id], [*zip(values[2::2], values[3::2], strict=True)])

    def _place(self, ids: Sequence[int], rows: Sequence[tuple[int, int]]) -> bool:
        usable = [cell for cell in self.cells if not cell.ids or self._may_be_reused(cell)][: len(rows)]
        if len(usable) < len(rows):
            return False
        for cell in usable:
            for loser in tuple(cell.ids):
                for lost in self.held_by(loser):
                    if lost.position <= cell.position:
                        lost.ids.discard(loser)
        for cell, (position, token) in zip(usable, rows, strict=True):
            cell.position, cell.token, cell.ids = position, token, set(ids)
        return True

    def _may_be_reused(self, cell: Cell) -> bool:
        if not self._window or len(cell.ids) != 1:
            return False
        (owner,) = cell.ids
        return self.last_position(owner) + 1 - cell.position >= self._window
