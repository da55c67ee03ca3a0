"""An engine on the fake memory over a real folder, and conversations at random with what must be left of them."""

import random
import sqlite3
from pathlib import Path

from fakes import BLOCK_BYTES, assert_idle, hashed, make_engine, run_to_end, text_of

from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_file import file_bytes
from pinyon.engine.block_store import BLOCK_TOKENS, BlockStore
from pinyon.engine.cache_notes import CacheNotes
from pinyon.engine.file_system import FileSystem
from pinyon.engine.kv_folder import DiskTier
from pinyon.engine.request import GenerateRequest, SamplingParams, Text

GREEDY = SamplingParams(temperature=0)
ABC = "".join(f"{number:03}," for number in range(100))
"""A prompt of 400 tokens that is nowhere like itself."""


def ask(name, prompt, conversation=None, **fields):
    return GenerateRequest(name, (Text(prompt),), GREEDY, conversation=conversation, **{"max_tokens": 8, **fields})


class QuickFiles(FileSystem):
    """Writes without syncing."""

    def write(self, path: Path, parts) -> None:
        path.write_bytes(b"".join(parts))


class World:
    """An engine over a folder, with room for so many `blocks` in RAM, and as many on disk; `made` is what it consists of."""

    def __init__(self, folder: Path, files=None, next_token=hashed, cells=1024, blocks=1000) -> None:
        self.folder = folder
        self.next_token = next_token
        self.room = blocks
        self.made = make_engine(next_token, cells=cells, store=BlockStore(blocks * BLOCK_BYTES))
        disk, self.notes = BlockDisk(folder, b"r" * 32, files or QuickFiles()), CacheNotes(folder, 1 << 20)
        found = [*disk.scan()]
        noted = self.notes.noted(header.key for header in found)
        cap_bytes = blocks * file_bytes(BLOCK_BYTES)
        self.engine.use_disk(
            DiskTier(b"", disk, found, cap_bytes, self.notes, self.notes.answers(), noted, frozenset())
        )

    @property
    def engine(self):
        return self.made.engine

    def run(self, name, prompt, conversation=None, **fields):
        """Return the text and the report of an answer, after checking both against an engine that knows nothing."""
        request = ask(name, prompt, conversation, **fields)
        events = run_to_end(self.engine, request)[name]
        assert text_of(events) == text_of(run_to_end(make_engine(self.next_token).engine, request)[name])
        while self.engine.tidy() == 0:
            pass
        assert_idle(self.made)
        return text_of(events), events[-1].cache

    def forget(self, conversation):
        removed, done = self.engine.forget(conversation)
        done.result(10)
        self.made.kv._store.check()
        return removed

    def restarted(self, files=None):
        self.engine.close()
        return World(self.folder, files, self.next_token, blocks=self.room)

    @property
    def blocks(self):
        """What the store holds, as the texts up to the end of each block."""
        return {self._text(block) for block in self.made.kv._store._blocks()}

    @staticmethod
    def _text(block):
        return "".join(bytes(each.tokens).decode() for each in reversed([*block.chain()]))

    @property
    def files(self):
        return {path.stem for path in self.folder.glob("*.kv")}

    @property
    def idle(self):
        """The texts of what is left in the context."""
        return {bytes(leaf.tokens()).decode() for leaf in self.made.kv._cells.idle()}

    def rows(self, table="conversations"):
        if not self.notes._thread._shutdown:
            self.notes._thread.submit(lambda: None).result()
        database = sqlite3.connect(self.folder / "notes.db")
        try:
            return database.execute(f"SELECT * FROM {table}").fetchall()
        finally:
            database.close()


def check_forgotten(world, history, forgotten):
    """Raise AssertionError unless all that is left is of what goes on, and all of that is left."""
    gone = [text for name in forgotten for text in history[name]]
    kept = [text for name in history.keys() - forgotten for text in history[name]]
    for text in world.blocks | world.idle:
        assert any(each.startswith(text) for each in kept), "something forgotten is left"
    for text in kept if world.room >= 1000 else ():
        if text in history[None] and any(each.startswith(text) for each in gone):
            continue  # nobody has noted it, and it does not go on
        for end in range(BLOCK_TOKENS, len(text) + 1, BLOCK_TOKENS):
            assert text[:end] in world.blocks, "something else has gone"


def talk_at_random(world, seed):
    """Several conversations, and requests without one, that begin alike, go on, branch and come back; return what each computed.

    The engine is started again now and then, so it is returned, too.
    """
    randomly, history = random.Random(seed), {"one": [], "two": [], "three": [], None: []}
    starts = [ABC[:length] for length in (64, 100, 128, 200)]
    for number in range(12):
        name = randomly.choice([*history])
        before = randomly.choice([*history[name], *starts, *starts])
        prompt = before[: randomly.choice([len(before), len(before) - 20, 64, 128])] + randomly.choice(
            ["", "more", ABC[5:80]]
        )
        text, _ = world.run(f"r{number}", prompt[:300], name)
        history[name].append(f"{prompt[:300]}{text}"[:-1])
        if randomly.random() < 0.2:
            world = world.restarted()
    return world, history
