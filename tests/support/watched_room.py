"""One watched engine after the other on the same folder, and prompts to ask them."""

from random import Random

from asking import GREEDY, end_of
from conversation_trees import Clock, open_engine
from kv_bytes import KvWitness

from pinyon.engine.events import Failed, Finished
from pinyon.engine.request import GenerateRequest, Tokens

CONTEXT = 512


class Room:
    """An engine, one request after the other, and restarts."""

    def __init__(self, model, folder):
        self._model, self._folder = model, folder
        self.witness = KvWitness()
        self.clock = Clock()
        self.start()

    def start(self):
        self.loaded = open_engine(
            self._model, self._folder, self.clock, context_tokens=CONTEXT, ram_blocks=100, disk_blocks=100
        )
        self.engine, self.kv = self.loaded.engine, self.loaded.engine._kv
        self.witness.watch(self.loaded)

    def submit(self, name, tokens, **fields):
        request = GenerateRequest(name, (Tokens(tuple(tokens)),), **{"sampling": GREEDY, "max_tokens": 1, **fields})
        self.engine.submit(self.engine.prepare(request))

    def ask(self, tokens, **fields):
        """Return the last event."""
        return end_of(self.events(tokens, **fields))

    def events(self, tokens, **fields):
        """Return a request's events. Others go on meanwhile."""
        self.submit("asked", tokens, **fields)
        events = []
        while not any(isinstance(event, Finished | Failed) for event in events):
            events += [event for name, event in self.engine.step() if name == "asked"]
        return events

    def store(self):
        """Have everything in RAM, and nothing more on disk yet."""
        self.kv._blocks.save(float("inf"))

    def empty(self):
        """Drop everything from the context; it is in RAM."""
        self.store()
        assert self.kv.make_room(CONTEXT)

    def restart(self):
        self.close()
        self.start()

    def close(self):
        self.engine.close()
        self.loaded.close()

    @property
    def memory(self):
        return self.loaded.context._memory

    def leaf(self, tokens):
        """The sequence that holds these tokens."""
        return next(leaf for leaf in self.kv._cells._tree.leaves if leaf.tokens() == [*tokens])

    def block(self, tokens, start):
        """The stored block of some tokens from a position on."""
        return next(hit.block for hit in self.kv._store.find("", tokens) if hit.block.start == start)


def tokens_of(seed, count):
    """Tokens that both tiny vocabularies have, and none of them ends an answer."""
    return [*Random(seed).choices(range(10, 250), k=count)]


PROMPT, OTHER = tokens_of(0, 200), tokens_of(1, 200)
SAME_END = OTHER[:64] + PROMPT[64:]
"""Other KV for the same tokens from position 64 on."""
