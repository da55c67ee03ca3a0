"""Blocks of KV by the tokens that they hold: in RAM, on disk, under caps that are never exceeded.

The index is a tree: a block's place is the chain of tokens before it, whole blocks first, perhaps a tail at the end. All of
this runs on the engine thread; bytes move on the disk's own threads, and nobody waits for them.

A block is in RAM, on disk or both, and leaves the index with the last of these. What follows it leaves before it does. A
checkpoint follows on the block at whose end it was taken; blocks that led to it alone leave with it.

Blocks without a file become useless with the process. A kill loses what was added in about the last second: blocks are handed to the
disk after TAIL_REST_S, whole ones after BUSY_REST_S or as soon as nobody computes, and a tail's file stays until a longer block's is there. A disk that is
slow or fails makes that more, a power cut a few seconds more, `close` nothing.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final, NamedTuple

from pinyon.engine.block import BLOCK_TOKENS, Block, Payload
from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_file import BlockHeader, chain_key, file_bytes
from pinyon.engine.cache_report import Miss
from pinyon.engine.events import Removed
from pinyon.engine.prefix_tree import common_length
from pinyon.engine.tier import Tier

TAIL_REST_S: Final = 1.0
"""How long a tail waits for its successor before it is written: autocompletion replaces it several times a second."""
BUSY_REST_S: Final = 1.0
"""How long a whole block waits for idle time."""
POLL_S: Final = 0.05
"""How often to look whether a write has ended."""
MAX_EVICTED: Final = 10_000
"""How many blocks are remembered when they are here no more."""
_NO_TOKEN: Final = -1


class Hit(NamedTuple):
    """The first `tokens` tokens of a block are those that were asked for."""

    block: Block
    tokens: int

    @property
    def end(self) -> int:
        return self.block.start + self.tokens

    def following(self, limit: int) -> list[int]:
        """Return up to so many tokens with which the block goes on after those, and the first of what is known to follow."""
        found, block = [*self.block.tokens[self.tokens :]], self.block
        while len(found) < limit and block.children:
            block = block.children[0]
            found += block.tokens
        return found[:limit]


Noted = Sequence[tuple[str, bytes]]
"""Conversations, each with the key of something that is kept of it."""


class BlockStore:
    """`ram_cap_bytes` covers what waits to be written, too: it stays in RAM until it is.

    While it `awaits_disk`, nobody knows yet what is kept there.
    """

    def __init__(
        self, ram_cap_bytes: int, clock: Callable[[], float] = time.perf_counter, *, awaits_disk: bool = False
    ) -> None:
        self.awaits_disk = awaits_disk
        self._ram = Tier(ram_cap_bytes)
        self._files = Tier(0)
        """Blocks with a file, or with one that is being written: its bytes are counted before they exist."""
        self._disk: BlockDisk | None = None
        self._clock = clock
        self._roots: dict[bytes, Block] = {}
        self._unwritten: dict[Block, float] = {}
        """Blocks in RAM that are to get a file, and since when."""
        self._evicted: dict[bytes, None] = {}
        self._elsewhere: frozenset[bytes] = frozenset()
        self._noted: list[tuple[str, bytes]] = []

    @property
    def ram_bytes(self) -> int:
        return self._ram.used_bytes

    @property
    def disk_bytes(self) -> int:
        """Also of files that are being written."""
        return self._files.used_bytes

    @property
    def disk_cap_bytes(self) -> int:
        return self._files.cap_bytes

    def resize(self, ram_cap_bytes: int, disk_cap_bytes: int) -> None:
        """Keep to other caps from now on. What is over them leaves at once, but for what is being written: that leaves by the call of
        `work` after `settled`. What has no file yet and room for one gets it before it leaves RAM.
        """
        self._files.cap_bytes = disk_cap_bytes
        self._keep_to_caps()
        if self._disk is not None and self._ram.used_bytes > ram_cap_bytes:
            self._write_all(self._disk)
        self._ram.cap_bytes = ram_cap_bytes
        self._keep_to_caps()

    def _keep_to_caps(self) -> None:
        for tier, evict in ((self._files, self._forget_file), (self._ram, self._evict_from_ram)):
            while tier.used_bytes > tier.cap_bytes and (victim := tier.next_victim()) is not None:
                evict(victim)

    def root(self, namespace: str) -> Block:
        """Return the beginning of every chain of a namespace."""
        return self._root(hashlib.sha256(namespace.encode()).digest())

    def _root(self, key: bytes) -> Block:
        return self._roots.setdefault(key, Block(key, None, 0, ()))

    def find(self, namespace: str, tokens: Sequence[int]) -> list[Hit]:
        """Return the blocks that hold the longest known beginning of the tokens, in order; the last may serve in part."""
        hits: list[Hit] = []
        block = self.root(namespace)
        while following := tuple(tokens[block.end : block.end + BLOCK_TOKENS]):
            child = block.closest_child(following)
            if child is None or not (common := common_length(child.tokens, following)):
                break
            hits.append(Hit(child, common))
            if common < BLOCK_TOKENS:
                break
            block = child
        return hits

    def find_checkpoint(self, namespace: str, tokens: Sequence[int]) -> Block | None:
        """Return the checkpoint after the longest known beginning of the tokens that has one."""
        whole = [hit.block for hit in self.find(namespace, tokens) if hit.tokens == BLOCK_TOKENS]
        for block in reversed([self.root(namespace), *whole]):
            following = (*tokens[block.end : block.end + BLOCK_TOKENS], _NO_TOKEN)
            for child in block.children_within(following):
                if child.checkpoint is not None:
                    return child.checkpoint
        return None

    def is_kept(self, block: Block) -> bool:
        return block.parent is None or block in self._ram or block in self._files

    def why_missing(self, parent: Block, tokens: Sequence[int]) -> Miss:
        """Return why there is no block of these tokens after a whole one."""
        key = chain_key(parent.key, tokens)
        if key in self._evicted:
            return Miss.EVICTED
        return Miss.OTHER_MODEL_OR_SETTINGS if key in self._elsewhere else Miss.NEW

    def add(self, parent: Block, tokens: Sequence[int], payload: Payload, prefill_s: float) -> Block | None:
        """Keep the KV of tokens that follow a whole block; return the block that holds them now.

        None if there is no room, or the block before has gone.
        """
        tokens = tuple(tokens)
        if (known := parent.child_with(tokens)) is not None:
            self.touch(known)
            return known
        if not (self.is_kept(parent) and self._make_room(self._ram, len(payload), parent, self._evict_from_ram)):
            return None
        key = chain_key(parent.key, tokens)
        block = Block(key, parent, parent.end, tokens, len(payload), prefill_s, payload, time.time())
        self._ram.add(block, len(payload))
        parent.insert(block)
        self._drop_superseded(block, also_files=False)
        if block.end >= BLOCK_TOKENS:  # a prompt that is shorter is not worth a file
            self._unwritten[block] = self._clock()
        return block

    def note(self, block: Block, conversation: str) -> None:
        """Count a block among those of a conversation, which has exactly its tokens."""
        if conversation not in block.conversations:
            block.conversations |= {conversation}
            self._noted.append((conversation, block.key))

    def take_noted(self) -> Noted:
        """Return what was noted since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def forget(self, conversation: str) -> Removed:
        """Forget the blocks that this conversation alone has noted, and that nothing else goes on from."""
        removed = self._remove_where(lambda block: block.conversations == {conversation})
        for block in self._blocks():
            if conversation in block.conversations:
                block.conversations -= {conversation}
        return removed

    def forget_before(self, time_s: float) -> Removed:
        """Forget the blocks that were made before a time, and that none made since goes on from."""
        return self._remove_where(lambda block: block.made_at < time_s)

    def _remove_where(self, is_chosen: Callable[[Block], bool]) -> Removed:
        removed = Removed()
        for block in reversed([*self._blocks()]):  # what goes on from a block comes before it
            if not block.children and block.checkpoint is None and is_chosen(block):
                removed += Removed(1, block.payload_bytes)
                self._drop(block)
        return removed

    def _blocks(self) -> Iterator[Block]:
        """Yield all blocks, each before what follows it."""
        for root in self._roots.values():
            yield from islice(root.with_descendants(), 1, None)

    def settled(self) -> Future[None]:
        """Return what is done when the files of all that was forgotten have gone. It raises OSError if one cannot be deleted."""
        if self._disk is not None:
            return self._disk.settled()
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing

    def touch(self, block: Block) -> None:
        """Count a use of a block and of all before it."""
        for tier in (self._ram, self._files):
            if (nearest := next((each for each in block.chain() if each in tier), None)) is not None:
                tier.touch(nearest)

    def read(self, block: Block) -> Payload | Future[memoryview] | None:
        """Return the block's bytes or the promise of them; None if it is not kept any more.

        The future raises OSError or BlockDamagedError: then `lose` the block.
        """
        if block.payload is not None:
            return block.payload
        return self._disk.read(block) if self._disk is not None and block in self._files else None

    def lose(self, block: Block) -> None:
        """Forget a block whose bytes cannot be used, with all that follows it, and delete the files."""
        if self.is_kept(block):
            self._drop(block)

    def attach(
        self,
        disk: BlockDisk,
        found: Iterable[BlockHeader],
        cap_bytes: int,
        noted: Noted = (),
        elsewhere: frozenset[bytes] = frozenset(),
    ) -> None:
        """Use a disk from now on; `found` is what it has already, `noted` which of that is whose. What does not fit, is superseded
        or follows on nothing goes. What was noted until now is to be noted there, too.

        `elsewhere` are the keys of blocks that other models have, or other settings: of the same tokens, of no use here.
        """
        self._disk = disk
        self._elsewhere = elsewhere
        self._files.cap_bytes = cap_bytes
        adopted: dict[bytes, Block] = {}
        for header in sorted(found, key=attrgetter("start")):
            parent = adopted.get(header.parent) if header.start else self._root(header.parent)
            block = None if parent is None else self._adopt(parent, header)
            if block is None:
                disk.delete(header.key)
            else:
                adopted[header.key] = block
        for block in adopted.values():  # now that all checkpoints are there
            if block in self._files:
                self._drop_superseded(block, also_files=True)
        self._noted = [(each, block.key) for block in self._blocks() for each in block.conversations]
        for conversation, key in noted:
            if (owned := adopted.get(key)) is not None:
                owned.conversations |= {conversation}

    def _adopt(self, parent: Block, header: BlockHeader) -> Block | None:
        """Return the block whose file was found, None if the file is of no use."""
        has_place = parent.end == header.start and (parent.parent is None or parent in self._files)
        known = parent.child_with(header.tokens)
        size_bytes = file_bytes(header.payload_bytes)
        if known is not None and known.tokens != header.tokens:
            known = None
        if not has_place or (known is not None and known in self._files):
            return None
        if not self._make_room(self._files, size_bytes, parent, self._forget_file):
            return None
        if known is not None:
            block = known
            self._unwritten.pop(block, None)
        else:
            size, made_at = header.payload_bytes, header.made_at
            block = Block(header.key, parent, header.start, header.tokens, size, header.prefill_s, made_at=made_at)
            parent.insert(block)
        self._files.add(block, size_bytes)
        return block

    def work(self, *, is_idle: bool = True) -> None:
        """Take note of finished writes and ask for the next ones. Cheap; to be called between steps.

        A write takes time from those who compute: unless it `is_idle`, whole blocks rest, too.
        """
        if (disk := self._disk) is None:
            return
        for block, is_there in disk.finished():
            self._note(block, is_there=is_there)
        self._keep_to_caps()
        while disk.takes_more and (due := self._next_due(is_idle=is_idle)) is not None:
            self._write(disk, due)

    def _next_due(self, *, is_idle: bool) -> Block | None:
        now = self._clock()
        due = (
            each
            for each, came in self._unwritten.items()
            if now >= (self._due_at(each) if is_idle else came + BUSY_REST_S)
        )
        return next(due, None)

    def next_work_s(self) -> float | None:
        """Return in how many seconds `work` has something to do; None while nothing waits."""
        if self._disk is None or (self._disk.is_idle and not self._unwritten):
            return None
        if not self._disk.is_idle:
            return POLL_S
        return max(POLL_S, min(map(self._due_at, self._unwritten)) - self._clock(), self._disk.rest_s)

    def _due_at(self, block: Block) -> float:
        return self._unwritten[block] + (0.0 if len(block.tokens) == BLOCK_TOKENS else TAIL_REST_S)

    def close(self) -> None:
        """Write what has no file yet, unless the disk fails, and end its threads."""
        if self._disk is not None:
            self._write_all(self._disk)
            self._disk.close()

    def check(self) -> None:
        """Raise AssertionError where the tree and the tiers contradict each other. Walks all of it."""
        kept = [*self._blocks()]
        for block in kept:
            assert self.is_kept(block), "a block is in the tree, and nowhere else"
            assert (block in self._ram) == (block.payload is not None), (
                "a block's bytes are in RAM uncounted, or counted and gone"
            )
        assert len(self._ram) == sum(block in self._ram for block in kept), "RAM has a block that is not in the tree"
        assert len(self._files) == sum(block in self._files for block in kept), "a file's block is not in the tree"
        unwritten = {block for block in kept if block in self._ram and block not in self._files}
        assert self._unwritten.keys() <= unwritten, "a block that has gone, or has a file, is to be written"

    def _write_all(self, disk: BlockDisk) -> None:
        while self._unwritten and not disk.rest_s:
            self._write(disk, next(iter(self._unwritten)))

    def _write(self, disk: BlockDisk, block: Block) -> None:
        """Have a file made for a block, and before it for those of its chain that have none."""
        del self._unwritten[block]
        chain = [*takewhile(lambda each: each.parent is not None and each not in self._files, block.chain())]
        for each in reversed(chain):
            size_bytes, parent = file_bytes(each.payload_bytes), each.parent
            assert parent is not None, "the beginning has no file"
            if not self._make_room(self._files, size_bytes, parent, self._forget_file):
                return
            self._unwritten.pop(each, None)
            self._files.add(each, size_bytes)
            for tier in (self._ram, self._files):
                tier.hold(each)
            disk.write(each)

    def _note(self, block: Block, *, is_there: bool) -> None:
        for tier in (self._ram, self._files):
            tier.release(block)
        if not is_there:
            self._files.remove(block)
            if block in self._ram:
                self._unwritten[block] = self._clock()
        elif block in self._files:
            self._drop_superseded(block, also_files=True)

    def _make_room(self, tier: Tier, size_bytes: int, parent: Block, evict: Callable[[Block], None]) -> bool:
        """Evict blocks until another one fits that follows `parent`; tell whether it does."""
        if size_bytes <= tier.cap_bytes and not tier.has_room(size_bytes):
            tier.hold(parent)
            while not tier.has_room(size_bytes) and (victim := tier.next_victim()) is not None:
                evict(victim)
            tier.release(parent)
        return tier.has_room(size_bytes)

    def _evict_from_ram(self, block: Block) -> None:
        self._ram.remove(block)
        block.payload = None
        if block not in self._files:
            self._evict(block)

    def _forget_file(self, block: Block) -> None:
        """Delete a block's file; without a copy in RAM the block goes with it."""
        self._delete_file(block)
        if block.payload is None:
            self._evict(block)

    def _evict(self, block: Block) -> None:
        """Drop a block that had to make room; with a checkpoint also those that led to it alone."""
        for each in block.with_descendants():
            self._evicted[each.key] = None
        while len(self._evicted) > MAX_EVICTED:
            del self._evicted[next(iter(self._evicted))]
        self._drop(block)
        if not block.tokens:
            leading = takewhile(lambda each: each.parent is not None and not self._is_held(each), [*block.chain()][1:])
            for each in leading:
                self._evict(each)

    def _is_held(self, block: Block) -> bool:
        return self._ram.is_held(block) or self._files.is_held(block)

    def _delete_file(self, block: Block) -> None:
        if block in self._files:
            assert self._disk is not None, "there are files"
            self._files.remove(block)
            self._disk.delete(block.key)

    def _drop_superseded(self, block: Block, *, also_files: bool) -> None:
        """Drop blocks that hold a beginning of another one; those with a file only once the other's is there.

        One with a checkpoint is where others may go on, too, unless the other one came at once.
        """
        assert block.parent is not None, "the beginning supersedes nothing"
        for shorter in block.parent.children_within(block.tokens):
            is_replaceable = also_files or shorter not in self._files
            if is_replaceable and not (shorter.checkpoint is not None and self._has_rested(shorter.checkpoint)):
                self._drop(shorter)

    def _has_rested(self, block: Block) -> bool:
        return self._clock() >= self._unwritten.get(block, float("-inf")) + TAIL_REST_S

    def _drop(self, block: Block) -> None:
        """Take a block of the tree and all that follows it out of everything."""
        assert block.parent is not None, "the beginning stays"
        for each in reversed([*block.with_descendants()]):
            self._ram.remove(each)
            each.payload = None
            self._unwritten.pop(each, None)
            self._delete_file(each)
            each.children.clear()
            each.checkpoint = None
        block.parent.remove(block)
