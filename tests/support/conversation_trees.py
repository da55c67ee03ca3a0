"""Random conversations with a real engine: they branch, are edited, cancelled and repeated, among neighbours that come and go, in
a context, a RAM tier and a disk tier that are too small for all of them, and across restarts.

All chance comes from a seed, and time is simulated. Only when a file is there depends on the machine.
"""

import io
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import NamedTuple

from asking import ids_of, text_of
from kv_bytes import TIERS, KvWitness

from pinyon.engine.batch import Batch
from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.config import EngineConfig
from pinyon.engine.engine import BatchRunner, Prepared
from pinyon.engine.events import Chunk, Event, Failed, Finished, FinishReason
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import Logits, NativeLog, RowBuffer
from pinyon.engine.request import GenerateRequest, Prompt, SamplingParams, Text, Tokens

WORDS = "the a of stone river bright seven walks under old garden with letter blue and quickly door never sings cloud".split()
RAM_BLOCKS = 4, 12, 200
DISK_BLOCKS = 12, 1000
LONG_TREES = int(os.environ.get("EQUIVALENCE_TREES", "200"))
"""How many trees a long test grows over a model."""
FIRST_SEED = int(os.environ.get("EQUIVALENCE_SEED", "0"))
"""The seed of the first tree."""
MAX_CONVERSATIONS, MAX_NEIGHBOURS = 6, 3
ROW_S, LOOK_S = 1e-2, 1e-3
"""What computing a row takes, and whatever happens between two looks at the clock."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S
        return self.now


@dataclass(eq=False)
class Conversation:
    """`turns` are the system prompt, and then questions with their answers."""

    turns: list[Prompt]

    def prompt(self, question: Prompt = ()) -> Prompt:
        return *chain.from_iterable(self.turns), *question


@dataclass(eq=False)
class Asked:
    """A request, and the conversation that it goes on with, if any."""

    prepared: Prepared
    conversation: Conversation | None = None
    question: Prompt = ()
    events: list[Event] = field(default_factory=list)

    @property
    def request(self) -> GenerateRequest:
        return self.prepared.request

    @property
    def answer(self) -> list[Event]:
        """The first choice's chunks."""
        return [event for event in self.events if isinstance(event, Chunk) and event.index == 0]


def open_engine(
    model: Path, folder: Path, clock: Clock, *, context_tokens: int, ram_blocks: int, disk_blocks: int
) -> LoadedEngine:
    """Load a model whose time is simulated, with room for so many blocks."""
    loaded = load_engine(
        EngineConfig(bytes(model), threads=1, context_tokens=context_tokens), model, NativeLog(io.StringIO())
    )
    engine, kv = loaded.engine, loaded.engine._kv
    for timed in (engine, kv, kv._blocks, kv._store):
        timed._clock = clock
    engine._runner = _TimedRunner(engine._runner, clock)
    block_bytes = BLOCK_TOKENS * _bytes_per_token(loaded)
    kv._store._ram.cap_bytes = ram_blocks * block_bytes
    engine.use_disk(open_tier(folder, model, loaded.context.kv_settings, disk_blocks * block_bytes))
    return loaded


class _TimedRunner:
    def __init__(self, runner: BatchRunner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    def run(self, batch: Batch) -> Logits:
        self._clock.now += ROW_S * batch.rows
        return self._runner.run(batch)


def _bytes_per_token(loaded: LoadedEngine) -> int:
    row = RowBuffer(1)
    loaded.context.decode(row, 1)
    size_bytes = len(loaded.context.export_state(0))
    loaded.context.remove_sequence(0)
    return size_bytes


class ConversationTree:
    """Each action is something that users do; after each one, all of the KV in the context is compared.

    After each start the context has one of the sizes in `contexts`, the least first; texts are about as long in proportion.
    `fields` are those of the requests by which conversations go on; others ask the same without them. `plant` changes an engine before it is asked anything.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        seed: int,
        witness: KvWitness,
        *,
        contexts: tuple[int, ...] = (384, 512),
        fields: Mapping[str, object] | None = None,
        plant: Callable[[LoadedEngine], None] = lambda _loaded: None,
    ) -> None:
        self.actions: Counter[str] = Counter()
        self.answered: list[Asked] = []
        """What belongs to conversations and was not cancelled."""
        self._model, self._folder, self._seed, self._witness = model, folder, seed, witness
        self._contexts = contexts
        self._fields = fields or {}
        self._plant = plant
        self._random = Random(seed)
        self._clock = Clock()
        self._open: dict[str, Asked] = {}
        self._names = count()
        self._start()
        sample = " ".join(WORDS)
        self._chars_per_token = len(sample) / len(self._loaded.engine.tokenize((Text(sample),)))
        system = self._text(contexts[0] // 4)
        self._systems = [(Text(system + self._text(contexts[0] // part), special=True),) for part in (100, 20, 8)]
        self._conversations = [Conversation([self._random.choice(self._systems)]) for _ in range(3)]

    def grow(self, actions: int) -> None:
        """Do so many things. Raises KvDiffersError."""
        for _ in range(actions):
            self.do(*self._random.choices([*ACTIONS], [*ACTIONS.values()]))

    def do(self, action: "Action") -> None:
        """Do one thing. Raises KvDiffersError, with a note that says in which tree after what."""
        self.actions[action.__name__] += 1
        try:
            action(self)
            self._witness.compare_all()
            self._loaded.engine._scheduler.check()
        except AssertionError as error:
            error.add_note(f"in the tree of seed {self._seed}, in {action.__name__}, after {dict(self.actions)}")
            raise

    def close(self) -> None:
        """End, whatever is going on: neighbours that are still there get no answer."""
        self._open.clear()
        self._loaded.engine.close()
        self._loaded.close()

    # What users do

    def next_turn(self) -> None:
        self._finish(self._ask_next(self._one()))

    def edit(self) -> None:
        """Go on from an earlier turn. What followed stays a conversation of its own, or is forgotten."""
        conversation = self._one()
        edited = Conversation(conversation.turns[: self._random.randint(1, len(conversation.turns))])
        if len(self._conversations) == MAX_CONVERSATIONS:
            self._conversations.remove(self._one())
        self._conversations.append(edited)
        self._finish(self._ask_next(edited))

    def cancel(self) -> None:
        """Stop in mid-prompt or mid-answer, and go on from what was said, perhaps."""
        asked = self._ask_next(self._one())
        self._steps(self._random.randint(0, 6))
        self._cancel(asked)

    def alternate(self) -> None:
        conversations = self._random.sample(self._conversations, min(3, len(self._conversations)))
        self._finish(*[self._ask_next(each) for each in conversations])

    def repeat(self) -> None:
        """Ask the same several times at once."""
        first = self._ask_next(self._one())
        same = [self._ask(first.request.prompt) for _ in range(2)]
        self._finish(first, *same)

    def choices(self) -> None:
        self._finish(self._ask(self._one().prompt(), n=self._random.randint(2, 3)))

    def shorter(self) -> None:
        """Ask a strict prefix of what was asked before."""
        tokens = self._loaded.engine.tokenize(self._one().prompt())
        self._finish(self._ask((Tokens(tuple(tokens[: self._random.randint(1, len(tokens) - 1)])),)))

    def neighbour(self) -> None:
        """Somebody comes who shares nothing and stays for a while, or goes."""
        neighbours = [asked for asked in self._open.values() if not asked.request.use_cache]
        if len(neighbours) == MAX_NEIGHBOURS:
            self._cancel(self._random.choice(neighbours))
        else:
            self._ask(
                (Text(self._text(self._random.randint(2, self._contexts[0] // 8))),),
                use_cache=False,
                ignore_eos=True,
                max_tokens=40,
            )
        self._steps(3)

    def press(self) -> None:
        """Take most of the context."""
        tokens = round(self._loaded.info.context_tokens * self._random.uniform(0.5, 0.8))
        self._finish(self._ask((Text(self._text(tokens)),), use_cache=False, max_tokens=1))

    def crowd(self) -> None:
        """Ask for more than the context can hold at once: somebody has to give way, and goes on later."""
        tokens = self._loaded.info.context_tokens // 4
        beginnings = [self._random.choice(self._systems) for _ in range(3)]
        self._finish(
            *[self._ask((*each, Text(self._text(20))), max_tokens=tokens, ignore_eos=True) for each in beginnings]
        )

    def rest(self) -> None:
        """Do nothing until all is stored."""
        self._finish_all()
        while (wait_s := self._loaded.engine.tidy()) is not None:
            self._clock.now += wait_s
            time.sleep(1e-3)  # files are written in real time

    def restart(self) -> None:
        self.close()
        self._start()

    # How

    def _start(self) -> None:
        self._loaded = open_engine(
            self._model,
            self._folder,
            self._clock,
            context_tokens=self._random.choice(self._contexts),
            ram_blocks=self._random.choice(RAM_BLOCKS),
            disk_blocks=self._random.choice(DISK_BLOCKS),
        )
        self._witness.watch(self._loaded)
        self._plant(self._loaded)

    def _one(self) -> Conversation:
        return self._random.choice(self._conversations)

    def _text(self, tokens: int) -> str:
        """Return some words, of about so many tokens."""
        words, chars = "", tokens * self._chars_per_token
        while len(words) < chars:
            words += f"{self._random.choice(WORDS)} "
        return words

    def _ask_next(self, conversation: Conversation) -> Asked:
        """Ask the next question; a conversation that has become too long begins anew."""
        question = (Text(self._text(self._random.randint(2, self._contexts[0] // 8))),)
        prompt = conversation.prompt(question)
        if len(self._loaded.engine.tokenize(prompt)) > self._contexts[0] * 0.7:
            conversation.turns = [self._random.choice(self._systems)]
            prompt = conversation.prompt(question)
        return self._ask(prompt, conversation, question, **self._fields)

    def _ask(
        self, prompt: Prompt, conversation: Conversation | None = None, question: Prompt = (), **fields: object
    ) -> Asked:
        number = next(self._names)
        sampling = SamplingParams(temperature=self._random.choice([0, 0.8]), seed=number)
        fields = {"max_tokens": self._random.randint(1, 10), **fields}
        engine = self._loaded.engine
        prepared = engine.prepare(GenerateRequest(f"{number}", prompt, sampling, **fields))
        asked = self._open[prepared.request.id] = Asked(prepared, conversation, question)
        self._hear(engine.submit(prepared))
        self._steps(self._random.randint(0, 2))
        return asked

    def _cancel(self, asked: Asked) -> None:
        self._hear(self._loaded.engine.cancel(asked.request.id))
        assert asked.request.id not in self._open

    def _finish(self, *waited_for: Asked) -> None:
        while any(asked.request.id in self._open for asked in waited_for):
            self._steps(1)

    def _finish_all(self) -> None:
        self._finish(*self._open.values())

    def _steps(self, steps: int) -> None:
        for _ in range(steps):
            self._hear(self._loaded.engine.step())

    def _hear(self, emitted: list[tuple[str, Event]]) -> None:
        for name, event in emitted:
            self._open[name].events.append(event)
            if isinstance(event, Finished | Failed):
                self._end(self._open.pop(name), event)

    def _end(self, asked: Asked, end: Event) -> None:
        assert isinstance(end, Finished), f"a request failed: {end}"
        if asked.conversation is not None:
            said = self._random.choice([Tokens(tuple(ids_of(asked.answer))), Text(text_of(asked.answer))])
            asked.conversation.turns.append((*asked.question, said))
            if FinishReason.CANCELLED not in end.reasons:
                self.answered.append(asked)


Action = Callable[[ConversationTree], None]

ACTIONS: dict[Action, int] = {
    ConversationTree.next_turn: 8,
    ConversationTree.edit: 3,
    ConversationTree.cancel: 3,
    ConversationTree.alternate: 3,
    ConversationTree.repeat: 2,
    ConversationTree.choices: 1,
    ConversationTree.shorter: 3,
    ConversationTree.neighbour: 5,
    ConversationTree.press: 2,
    ConversationTree.crowd: 1,
    ConversationTree.rest: 2,
    ConversationTree.restart: 2,
}
"""How often each of them is done."""


class Grown(NamedTuple):
    """What some trees compared, by where it came from, what was done, and what was answered."""

    hits: Counter[str]
    cells: Counter[str]
    actions: Counter[str]
    answered: list[Asked]

    def require(self, hits: int, cells: int) -> None:
        """Raise AssertionError unless so much of each kind was compared: where nothing is compared, nothing differs."""
        for tier in TIERS:
            assert self.hits[tier] >= hits, f"only {self.hits} hits were compared: {hits} of each are wanted"
            assert self.cells[tier] >= cells, f"only {self.cells} cells were compared: {cells} of each are wanted"


def grow(model: Path, folder: Path, trees: int, actions: int, **kwargs: object) -> Grown:
    """Grow trees of seeds that follow one another, each with so many actions, and compare their KV."""
    grown = Grown(Counter(), Counter(), Counter(), [])
    for seed in range(FIRST_SEED, FIRST_SEED + trees):
        own, witness = folder / f"{seed}", KvWitness()
        with closing(ConversationTree(model, own, seed, witness, **kwargs)) as tree:
            tree.grow(actions)
        shutil.rmtree(own)
        grown.hits.update(witness.hits)
        grown.cells.update(witness.cells)
        grown.actions.update(tree.actions)
        grown.answered.extend(tree.answered)
    print(
        f"{trees} trees: {dict(grown.hits)} hits with {dict(grown.cells)} cells were compared, in {dict(grown.actions)}"
    )
    return grown
