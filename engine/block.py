"""A block: the KV of a run of tokens after a certain prefix, wherever its bytes are, and the blocks that go on from there.

Some models keep a state that cannot be cut into runs: it is what all tokens so far have made of it. Their blocks hold what can
be cut, perhaps nothing; the rest is a checkpoint: a block of no tokens, which hangs on the one that it is the state after.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from pinyon.engine.prefix_tree import common_length

BLOCK_TOKENS: Final = 64
"""A whole block: the tile of llama.cpp's attention, at whose multiples prompts are cut."""

Payload = bytes | memoryview
"""KV as llama.cpp exports it."""

_tokens_of = attrgetter("tokens")


@dataclass(eq=False, slots=True)
class Block:
    """`tokens` follow what `parent` holds, from position `start` on. A whole block has 64, the tail of a prompt fewer.

    `made_at` is in seconds since 1970; `conversations` are those that had exactly these tokens after what is before them.

    The bytes are in RAM (`payload`), on disk, or both; `prefill_s` is what computing them took. A namespace's first block is
    empty and has no parent. Each other one may have a checkpoint. Only whole blocks have children. These are sorted by their
    tokens: those that begin alike are neighbours, so thousands of prompts that differ from their first block on are searched in a
    few steps.
    """

    key: bytes
    parent: "Block | None"
    start: int
    tokens: tuple[int, ...]
    payload_bytes: int = 0
    prefill_s: float = 0.0
    payload: Payload | None = None
    made_at: float = 0.0
    conversations: frozenset[str] = frozenset()
    children: list["Block"] = field(default_factory=list)
    checkpoint: "Block | None" = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def saved_s_per_byte(self) -> float:
        """What keeping the block is worth."""
        return self.prefill_s / self.payload_bytes

    def chain(self) -> Iterator["Block"]:
        """Yield this block and those before it, the beginning last."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def with_descendants(self) -> Iterator["Block"]:
        """Yield this block and all that follow it, each before what follows it."""
        waiting = [self]
        while waiting:
            block = waiting.pop()
            yield block
            waiting += block.children
            if block.checkpoint is not None:
                waiting.append(block.checkpoint)

    def insert(self, child: "Block") -> None:
        if child.tokens:
            insort(self.children, child, key=_tokens_of)
        else:
            self.checkpoint = child

    def remove(self, child: "Block") -> None:
        if child is self.checkpoint:
            self.checkpoint = None
            return
        at = bisect_left(self.children, child.tokens, key=_tokens_of)
        assert self.children[at] is child, "it is no child of this block"
        del self.children[at]

    def closest_child(self, tokens: tuple[int, ...]) -> "Block | None":
        """Return the child that shares the longest beginning with the tokens; None where there is no child."""
        at = bisect_left(self.children, tokens, key=_tokens_of)
        neighbours = self.children[max(at - 1, 0) : at + 1]
        return max(neighbours, key=lambda child: common_length(child.tokens, tokens), default=None)

    def child_with(self, tokens: tuple[int, ...]) -> "Block | None":
        """Return the child that holds all of the tokens, and perhaps more after them; for no tokens the checkpoint."""
        if not tokens:
            return self.checkpoint
        child = self.closest_child(tokens)
        return child if child is not None and child.tokens[: len(tokens)] == tokens else None

    def children_within(self, tokens: tuple[int, ...]) -> list["Block"]:
        """Return the children that hold a beginning of the tokens, but not all of them."""
        found: list[Block] = []
        length = len(tokens) - 1
        while at := bisect_right(self.children, tokens[:length], key=_tokens_of):
            # All that is looked for is a beginning of this one, too: it is the last that is not after tokens[:length].
            child = self.children[at - 1]
            length = common_length(child.tokens, tokens[:length])
            if length == len(child.tokens):
                found.append(child)
                length -= 1
        return found
