"""Models whose state cannot be cut into ranges, as llama.cpp runs them: a mamba, a hybrid, and a small window.

What they say with the cache is what they say without it, but for ties, and the states that it comes from are the same, byte for byte.
"""

import io
import random
from concurrent.futures import Future

import pytest
from asking import GREEDY
from fakes import tokens_of
from tiny_architectures import write_tiny_gemma3, write_tiny_jamba, write_tiny_mamba
from tiny_models import FIRST_BYTE, VOCABULARY

from pinyon.engine.block_file import HEAD_BYTES, decode_head
from pinyon.engine.cache_report import Miss
from pinyon.engine.checkpoints import Checkpoints
from pinyon.engine.config import EngineConfig
from pinyon.engine.engine import Prepared
from pinyon.engine.events import Chunk
from pinyon.engine.kv_folder import open_tier
from pinyon.engine.loader import load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, Text

pytestmark = pytest.mark.model

WINDOW = 16
"""So small that a window's cells for each sequence are fewer than the context has."""
WRITERS = {
    "mamba": write_tiny_mamba,
    "jamba": write_tiny_jamba,
    "small window": lambda path: write_tiny_gemma3(path, window=WINDOW),
}
ANSWER = 10
CAP_BYTES = 100 << 20
TIE = 0.01
"""How rows are cut and where cells lie changes log probabilities by less than this, a wrong state by far more."""


@pytest.fixture(scope="module", params=WRITERS)
def path(request, tmp_path_factory):
    return WRITERS[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf")


class Loaded:
    """An engine, perhaps with a folder for its blocks."""

    def __init__(self, path, folder=None, cap_bytes=CAP_BYTES):
        config = EngineConfig(bytes(path), threads=1, kv_ram_cap_bytes=cap_bytes, full_window=False)
        self.made = load_engine(config, path, NativeLog(io.StringIO()))
        self.engine = self.made.engine
        costs = self.engine._kv._costs  # so small a model computes everything sooner than a file is read
        costs.measure_step = costs.measure_restore = lambda *_measured: None
        if folder is not None:
            self.engine.use_disk(open_tier(folder, path, self.made.context.kv_settings, CAP_BYTES))

    def ask(self, *prompts, **fields):
        """Ask at once; return each answer's tokens and its end."""
        return [(tokens_of(events), end) for events, end in self.ask_for_events(*prompts, **fields)]

    def ask_for_events(self, *prompts, **fields):
        for number, prompt in enumerate(prompts):
            options = {"sampling": GREEDY, "max_tokens": ANSWER, "ignore_eos": True, **fields}
            request = GenerateRequest(str(number), (Text("x"),), **options)
            self.engine.submit(Prepared(request, [*prompt], []))
        events = {str(number): [] for number in range(len(prompts))}
        while self.engine.busy:
            for name, event in self.engine.step():
                events[name].append(event)
        self.kv.check()
        return [(each, each[-1]) for each in events.values()]

    @property
    def kv(self):
        return self.engine._kv

    def tidy(self):
        while self.engine.tidy() == 0:
            pass

    def close(self):
        self.engine.close()
        self.made.close()


@pytest.fixture(scope="module")
def cold(path):
    """Compares an answer with the one without the cache, up to a tie."""
    loaded = Loaded(path)

    def compare(prompt, answer):
        ((events, end),) = loaded.ask_for_events(prompt, use_cache=False, logprobs=2)
        assert (end.cache.cached, end.cache.miss) == (0, Miss.DISABLED)
        positions = [position for event in events if isinstance(event, Chunk) for position in event.logprobs]
        for token, position in zip(answer, positions, strict=True):
            best, second = position.top
            assert token == best.token or (token == second.token and best.logprob - second.logprob < TIE)
            if token != best.token:
                break

    yield compare
    loaded.close()


@pytest.fixture
def loaded(path):
    made = Loaded(path)
    yield made
    made.close()


def text(count, seed=0):
    choose = random.Random(seed)
    return [choose.randrange(FIRST_BYTE, VOCABULARY) for _ in range(count)]


def tiers(end):
    assert end.cache.cached == end.usage.cached_tokens
    return end.cache.resident, end.cache.ram, end.cache.disk


def test_a_turn_goes_on_where_the_last_one_ended(loaded, cold):
    history, known = text(100), 0
    for turn in range(4):
        ((answer, end),) = loaded.ask(history)
        cold(history, answer)
        assert tiers(end) == (known, 0, 0)
        known = len(history) + ANSWER - 1
        history = [*history, *answer, *text(30, turn + 1)]


def test_after_a_restart_a_conversation_goes_on_from_the_disk(path, cold, tmp_path):
    history, known = text(150), 0
    for turn in range(3):
        loaded = Loaded(path, tmp_path)
        ((answer, end),) = loaded.ask(history)
        cold(history, answer)
        assert tiers(end) == (0, 0, known)
        loaded.close()
        known = len(history) + ANSWER - 1
        history = [*history, *answer, *text(30, turn + 1)]


def test_the_same_prompt_again_computes_its_last_block_only(loaded, cold):
    prompt = text(200)
    for _ in range(3):
        ((answer, end),) = loaded.ask(prompt)
        cold(prompt, answer)
    assert (tiers(end), end.cache.miss, end.cache.position) == ((0, 192, 0), Miss.UNAVAILABLE, 192)


def test_who_parts_from_a_known_text_leaves_a_checkpoint_there(loaded, cold):
    common = text(150)
    cached = []
    for number in range(3):
        prompt = common + text(60, number + 1)
        ((answer, end),) = loaded.ask(prompt)
        cold(prompt, answer)
        cached.append(end.cache.cached)
    assert cached == [0, 0, 128]


def test_requests_at_once_share_what_they_have_in_common(loaded, cold):
    """More than there are sequence ids."""
    prompts = [text(140) + text(20, number + 1) for number in range(9)]
    for prompt, (answer, end) in zip(prompts, loaded.ask(*prompts), strict=True):
        cold(prompt, answer)
        assert end.cache.cached == (0 if prompt is prompts[0] else 128)


class Compares(Checkpoints):
    """Compares what a sequence holds when it is complete again with what was stored."""

    compared = 0

    def put_back(self, leaf, state):
        assert super().put_back(leaf, state)
        (namespace,) = self._store._roots.values()
        block, memory = namespace, self._memory
        while block.end < leaf.length:
            block = block.child_with(tuple(leaf.tokens(block.end)[:64]))
            memory.copy_sequence(leaf.sequence_id, self._scratch, block.start, block.end)
            assert bytes(self.export_cells()) == bytes(self.stored(block))
            memory.remove_sequence(self._scratch)
        memory.copy_sequence(leaf.sequence_id, self._scratch, 0, leaf.length)
        assert bytes(memory.export_checkpoint(self._scratch)) == bytes(state)
        memory.remove_sequence(self._scratch)
        Compares.compared += 1
        return True

    def stored(self, block):
        state = self._store.read(block)
        return state.result() if isinstance(state, Future) else state


def test_what_comes_back_is_what_was_there_byte_for_byte(path, cold, tmp_path):
    """From the disk, into a context in which others lie, and into one where the cells are still there."""
    Compares.compared = 0
    prompt, other = text(200), text(90, 1)
    first = Loaded(path, tmp_path)
    first.ask(prompt)
    first.close()
    blocks = [block for root in first.kv._store._roots.values() for block in root.with_descendants()]
    assert len({block.payload_bytes for block in blocks if len(block.tokens) == 64}) == 1, "cells alone, no window's"
    again = Loaded(path, tmp_path)
    again.kv._checkpoints.__class__ = Compares
    again.ask(other, other[:50] + text(20, 2))
    for _ in range(2):
        ((answer, end),) = again.ask(prompt)
        cold(prompt, answer)
        assert end.cache.cached == 192
    assert Compares.compared == 2
    again.close()


@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_damaged_files_are_a_miss_and_a_right_answer(path, cold, tmp_path, is_checkpoint):
    prompt = text(200)
    first = Loaded(path, tmp_path)
    first.ask(prompt)
    first.close()
    for file in tmp_path.rglob("*.kv"):
        data = bytearray(file.read_bytes())
        if bool(decode_head(bytes(data[:HEAD_BYTES])).tokens) != is_checkpoint:
            data[HEAD_BYTES + 3] ^= 1
            file.write_bytes(data)
    again = Loaded(path, tmp_path)
    ((answer, end),) = again.ask(prompt)
    cold(prompt, answer)
    assert (tiers(end), end.cache.miss) == ((0, 0, 0), Miss.UNREADABLE)
    ((answer, end),) = again.ask(prompt)
    cold(prompt, answer)
    assert end.cache.cached == 192
    again.close()


def test_in_little_memory_checkpoints_make_room_for_one_another(path, cold):
    loaded = Loaded(path, cap_bytes=100_000)
    for _ in range(2):
        for seed in range(5):
            prompt = text(150, seed)
            ((answer, _),) = loaded.ask(prompt)
            cold(prompt, answer)
            loaded.tidy()
            store = loaded.kv._store
            store.check()
            assert store._ram.used_bytes <= store._ram.cap_bytes
    (_, end), *_ = loaded.ask(text(150, 4))
    assert end.cache.cached == 128
    loaded.close()


class PutsNothingBack(Checkpoints):
    def put_back(self, _leaf, _state):
        return True


class PutsAnothersBack(Checkpoints):
    """The state of a prompt of the same length."""

    def put_back(self, leaf, state):
        others = (block for root in self._store._roots.values() for block in root.with_descendants())
        other = next(each for each in others if not each.tokens and each.start == leaf.length and each.payload != state)
        return super().put_back(leaf, other.payload)


@pytest.mark.parametrize("faulty", [PutsNothingBack, PutsAnothersBack])
def test_a_wrong_state_shows_in_the_answer(loaded, cold, faulty):
    """Not in every answer: a tiny model may say the same of less."""
    prompts = [text(200, seed) for seed in range(5)]
    for prompt in prompts:
        loaded.ask(prompt)
    loaded.kv._checkpoints.__class__ = faulty
    wrong = 0
    for prompt in prompts:
        ((answer, end),) = loaded.ask(prompt)
        assert end.cache.cached == 192
        try:
            cold(prompt, answer)
        except AssertionError:
            wrong += 1
    assert wrong


@pytest.mark.parametrize(("window", "is_full"), [(16, False), (48, True)])
def test_a_window_is_small_only_where_that_takes_less_memory(tmp_path, window, is_full):
    loaded = Loaded(write_tiny_gemma3(tmp_path / "tiny.gguf", window=window))
    assert f"full window {is_full}" in loaded.made.context.kv_settings
    assert loaded.kv._cells.window == (window if is_full else 0)
    loaded.close()


@pytest.mark.parametrize("seed", range(3))
def test_branching_conversations_say_what_they_say_cold(path, cold, tmp_path, seed):
    choose = random.Random(seed)
    histories, cached = [text(70, 100 + seed)], 0
    loaded = Loaded(path, tmp_path)
    for turn in range(12):
        base = choose.choice(histories)
        base = base[: choose.randrange(len(base) // 2, len(base) + 1)] if choose.random() < 0.4 else base
        prompts = [
            base + text(choose.randrange(1, 90), 1000 * seed + 10 * turn + each)
            for each in range(choose.choice([1, 1, 2]))
        ]
        prompts = [prompt[:400] for prompt in prompts]
        for prompt, (answer, end) in zip(prompts, loaded.ask(*prompts), strict=True):
            cold(prompt, answer)
            histories.append(prompt + answer)
            cached += end.cache.cached
        if choose.random() < 0.5:
            loaded.tidy()
        if choose.random() < 0.2:
            loaded.close()
            loaded = Loaded(path, tmp_path)
    assert cached > 500
    loaded.close()
