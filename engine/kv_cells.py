"""Who holds which cells of the context, and under which sequence ids.

A request begins with the longest prefix that is there already, shares its cells, and grows from there. What it leaves behind
stays for others until its cells or its sequence id are needed; then the least recently used goes first.

Cells of layers with a sliding window are reused by llama.cpp once they are outside the window of the one sequence that holds
them. So with a window every sequence has a guard: a second sequence id on each of its cells, which nothing else has.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pinyon.engine.prefix_tree import Leaf, Match, PrefixTree


class KvMemory(Protocol):
    """The native side; native.Context is one."""

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None: ...
    def remove_sequence(self, sequence_id: int) -> None: ...
    def cut_sequence(self, sequence_id: int, length: int) -> None: ...
    def first_position(self, sequence_id: int) -> int: ...
    def clear_memory(self) -> None: ...


class KvCells:
    """`cells` is the room for tokens, `sequence_ids` how many paths may be held at once.

    `window` is how far the narrowest layer looks back, 0 for no limit: then sequence id `s` has the guard `sequence_ids + s`.
    If a sequence `needs_checkpoints`, its cells are a part of its state only, and the rest is of use at its end alone.
    `before_drop` is called with a leaf that is about to go for another reason than a call of `drop`.
    """

    def __init__(
        self,
        memory: KvMemory,
        *,
        cells: int,
        sequence_ids: int,
        window: int = 0,
        needs_checkpoints: bool = False,
        before_drop: Callable[[Leaf], None] = lambda _leaf: None,
    ) -> None:
        self.cells = cells
        self._memory = memory
        self.sequence_ids = sequence_ids
        self.window = window
        self.needs_checkpoints = needs_checkpoints
        self._before_drop = before_drop
        self._tree = PrefixTree()

    @property
    def free(self) -> int:
        return self.cells - self._tree.cells

    @property
    def available(self) -> int:
        """How many cells are free, or would be if everything that no request holds were dropped."""
        return self.cells - self._tree.cells_in_use()

    def match(self, namespace: str, tokens: Sequence[int]) -> Match:
        """Return the longest beginning of the tokens that is in the context and can be gone on from."""
        match = self._tree.match(namespace, tokens)
        source = match.source
        if source is None or self._has_window_of(source, match.length):
            return match
        return self._tree.match(namespace, ())

    def _has_window_of(self, source: Leaf, length: int) -> bool:
        """Whether what the next token after so many looks back at has not been lost."""
        if not self.window:
            return True
        return 0 <= self._memory.first_position(source.sequence_id) <= max(0, length - self.window)

    def resumable(self, namespace: str, tokens: Sequence[int]) -> int:
        """Return how many of the tokens a sequence holds that no request holds and that ends with them; 0 for none."""
        match = self.match(namespace, tokens)
        return 0 if match.idle_leaf is None else match.length

    def found(self, namespace: str, tokens: Sequence[int]) -> tuple[int, bool]:
        """Return how many of the tokens `begin` would find, and whether the sequence would lack their checkpoint."""
        match = self.match(namespace, tokens[:-1])
        return match.length, self._lacks_checkpoint(match) and match.idle_leaf is None

    def _lacks_checkpoint(self, forked: Match) -> bool:
        return self.needs_checkpoints and forked.length > 0

    def room_for(self, namespace: str, tokens: Sequence[int]) -> int:
        """Return how many tokens a request that begins with these could have in all, if no other one grew."""
        match = self.match(namespace, tokens[:-1])
        return self.cells - self._tree.cells_in_use(also=match) + match.length

    def begin(self, namespace: str, tokens: Sequence[int]) -> Leaf | None:
        """Return a leaf for a request, with the longest known beginning of the tokens; None while every id is in use.

        The last token is left to be computed in any case: its logits are not kept.
        """
        match = self.match(namespace, tokens[:-1])
        if (leaf := match.idle_leaf) is not None:
            leaf.in_use = True
            return leaf
        if (sequence_id := self._free_id()) is not None:
            return self._fork(match, sequence_id)
        if (oldest := self.oldest_idle(spared=match.source)) is None:
            return None
        self.evict(oldest)
        return self.begin(namespace, tokens)

    def _free_id(self) -> int | None:
        taken = {leaf.sequence_id for leaf in self._tree.leaves}
        return next((sequence_id for sequence_id in range(self.sequence_ids) if sequence_id not in taken), None)

    def _fork(self, match: Match, sequence_id: int) -> Leaf:
        if (source := match.source) is not None:
            for target in self.ids_of(sequence_id):
                self._memory.copy_sequence(source.sequence_id, target, 0, match.length)
        leaf = self._tree.fork(match, sequence_id)
        leaf.lacks_checkpoint = self._lacks_checkpoint(match)
        return leaf

    def ids_of(self, sequence_id: int) -> tuple[int, ...]:
        """Return the ids that a sequence's cells carry: its own, and its guard's where there is a window."""
        return (sequence_id, self.sequence_ids + sequence_id) if self.window else (sequence_id,)

    def grow(self, leaf: Leaf, tokens: Sequence[int]) -> None:
        """Count tokens whose KV a sequence has got."""
        self._tree.extend(leaf, tokens)

    def cut(self, leaf: Leaf) -> None:
        """Free the cells that a sequence has got beyond what is counted."""
        for sequence_id in self.ids_of(leaf.sequence_id):
            self._memory.cut_sequence(sequence_id, leaf.length)

    def rest(self, leaf: Leaf) -> None:
        """Keep what a request leaves behind, as long as there is room; what others hold as well is dropped at once."""
        leaf.in_use = False
        self._tree.touch(leaf)
        if self._tree.is_held_elsewhere(leaf):
            self.evict(leaf)

    def drop(self, leaf: Leaf) -> None:
        """Give up a sequence, and the cells that it alone holds."""
        self._tree.remove(leaf)
        for sequence_id in self.ids_of(leaf.sequence_id):
            self._memory.remove_sequence(sequence_id)

    def empty(self, leaf: Leaf) -> None:
        """Take all tokens from a sequence."""
        self._tree.empty(leaf)
        for sequence_id in self.ids_of(leaf.sequence_id):
            self._memory.remove_sequence(sequence_id)
        leaf.lacks_checkpoint = False

    def make_room(self, cells: int) -> bool:
        """Drop what no request holds, the least recently used first, until so many cells are free; tell whether they are."""
        while self.free < cells:
            if (oldest := self.oldest_idle()) is None:
                return False
            self.evict(oldest)
        return True

    def clear(self) -> None:
        """Drop everything, so that the next token gets the first cell. No request may hold anything."""
        while (oldest := self.oldest_idle()) is not None:
            self.evict(oldest)
        assert not self._tree.cells, "a request holds cells"
        self._memory.clear_memory()

    def evict(self, leaf: Leaf) -> None:
        """Let a leaf go that no request holds."""
        self._before_drop(leaf)
        self.drop(leaf)

    def idle(self) -> list[Leaf]:
        """Return the leaves that no request holds, the least recently used first."""
        return [leaf for leaf in self._tree.leaves if not leaf.in_use]

    def oldest_idle(self, spared: Leaf | None = None) -> Leaf | None:
        """Return the least recently used leaf that no request holds; the spared one only if there is no other."""
        return min(self.idle(), key=lambda leaf: leaf is spared, default=None)  # the first of equals

    def check(self) -> None:
        """Raise AssertionError where leaves contradict one another or the limits."""
        self._tree.check()
        assert 0 <= self._tree.cells <= self.cells, f"{self._tree.cells} cells used of {self.cells}"
        for leaf in self._tree.leaves:
            assert 0 <= leaf.sequence_id < self.sequence_ids, f"there is no sequence id {leaf.sequence_id}"
            assert leaf.in_use or leaf.own_cells, "an idle sequence would give no cell back"
