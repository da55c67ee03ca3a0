"""Damage to kept KV, through a whole engine over a real model: each fault is a miss, and every answer is the right one."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import kept_kv
import msgspec
import pytest
from kept_kv import LONG_AGO, blocks_in, kept_engine, payloads_in
from tiny_models import FIRST_BYTE, TURN_END

from pinyon.engine.answer_memory import _key
from pinyon.engine.cache_notes import FILE_NAME, CacheNotes, Note, forget_notes, read_notes
from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.errors import NativeError
from pinyon.engine.native import Context
from pinyon.engine.request import GenerateRequest, Text

pytestmark = pytest.mark.model

OTHER = LONG_AGO[:64] + "Of another conversation nothing may ever be seen in this one. " * 2 + "And so on."
UNRELATED = "".join(f"{number:03};" for number in range(50, 0, -1))
PROMPTS = (LONG_AGO, OTHER, UNRELATED, LONG_AGO)


@pytest.fixture(scope="module")
def cold(tiny):
    """What an engine without a cache says."""
    with kept_engine(tiny, None) as made:
        answers = {prompt: made.ask(prompt, use_cache=False).text for prompt in PROMPTS}
    assert len({*answers.values()}) == len(answers), "an answer does not show what it is the answer to"
    return answers


@pytest.fixture(scope="module")
def filled(tiny, tmp_path_factory):
    """A folder with two conversations that begin alike."""
    folder = tmp_path_factory.mktemp("filled") / "kv"
    with kept_engine(tiny, folder) as made:
        made.ask(LONG_AGO)
        made.ask(OTHER)
    assert len(blocks_in(folder)) == 7, "two chains of three blocks and a tail have their first one in common"
    return folder


@pytest.fixture
def folder(filled, tmp_path):
    return shutil.copytree(filled, tmp_path / "kv")


def assert_right(made, cold):
    """All prompts are answered as without a cache, and no cell is lost."""
    assert [made.ask(prompt).text for prompt in PROMPTS] == [cold[prompt] for prompt in PROMPTS]
    made.engine._scheduler.check()
    used_bytes = made.loaded.context.state_bytes()
    assert made.engine._kv.make_room(made.engine.context_tokens), "a cell is held by nobody that is known"
    assert made.loaded.context.state_bytes() < used_bytes
    assert [made.loaded.context.first_position(each) for each in range(64)] == [-1] * 64, "a sequence is left"


def block_of(made, prompt, position):
    return made.engine._kv._store.find("", made.engine.tokenize((Text(prompt),)))[position].block


# Files: F1, R36


def flip(data, choose):
    bit = choose.randrange(8 * len(data))
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def truncate(data, choose):
    return data[: choose.randrange(len(data))]


def test_what_is_kept_comes_back(tiny, folder, cold):
    """Without a fault native code takes in all of it: what the tests below see comes of their faults."""
    with kept_engine(tiny, folder) as made:
        text, end = made.ask(LONG_AGO)
        assert (text, end.cache.disk, end.cache.miss) == (cold[LONG_AGO], 199, None)
        assert len(made.imported) == 4
        assert {*made.imported} <= payloads_in(folder)
        assert_right(made, cold)


@pytest.mark.parametrize("damage", [flip, truncate])
@pytest.mark.parametrize("rounds", [20, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_no_damaged_byte_reaches_native_code(tiny, filled, cold, tmp_path, damage, rounds):
    choose = random.Random(rounds)
    intact = payloads_in(filled)
    names = [path.relative_to(filled) for path in blocks_in(filled)]
    for number in range(rounds):
        folder = shutil.copytree(filled, tmp_path / str(number))
        damaged = folder / choose.choice(names)
        damaged.write_bytes(bad := damage(damaged.read_bytes(), choose))
        with kept_engine(tiny, folder) as made:
            assert_right(made, cold)
            assert {*made.imported[:7]} <= intact, "native code was given what had not been written"
        assert not damaged.exists() or damaged.read_bytes() != bad, "what is damaged goes, or is written again"
        assert payloads_in(folder), "all that is there now verifies"
        shutil.rmtree(folder)


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("damage", [flip, truncate, lambda _data, _choose: None], ids=["flip", "truncate", "delete"])
def test_a_file_damaged_behind_the_index_is_a_miss_from_there_on(tiny, folder, cold, position, damage):
    with kept_engine(tiny, folder) as made:
        (path,) = folder.rglob(f"{block_of(made, LONG_AGO, position).key.hex()}.kv")
        bad = damage(path.read_bytes(), random.Random(position))
        path.unlink() if bad is None else path.write_bytes(bad)
        text, end = made.ask(LONG_AGO)
        assert (text, end.cache.disk, end.cache.miss) == (cold[LONG_AGO], 64 * position, Miss.UNREADABLE)
        assert_right(made, cold)


# Bytes in RAM, and native code that refuses: R36. A flipped bit in RAM is nobody's to find, here as in the context itself.


@pytest.mark.parametrize("position", range(4))
def test_what_is_cut_in_ram_is_a_miss_from_there_on(tiny, cold, position):
    with kept_engine(tiny, None) as made:
        assert made.ask(LONG_AGO).text == cold[LONG_AGO]
        made.engine._kv.make_room(made.engine.context_tokens)
        block = block_of(made, LONG_AGO, position)
        block.payload = block.payload[:-1]
        text, end = made.ask(LONG_AGO)
        assert (text, end.cache.ram, end.cache.miss) == (cold[LONG_AGO], 64 * position, Miss.UNREADABLE)
        assert_right(made, cold)


@pytest.mark.parametrize("refused", range(4))
def test_a_state_that_is_refused_half_way_leaves_nothing(tiny, folder, cold, monkeypatch, refused):
    """llama.cpp says no after it has put all of another conversation's cells into place."""
    import_state = Context.import_state
    with kept_engine(tiny, folder) as made:
        other_state = made.engine._kv._store.read(block_of(made, OTHER, 1)).result(10)

        def refuse(self, sequence_id, state):
            if len(made.imported) == refused + 1:
                assert import_state(self, sequence_id, other_state)
                return False
            return import_state(self, sequence_id, state)

        monkeypatch.setattr(Context, "import_state", refuse)
        text, end = made.ask(LONG_AGO)
        assert (text, end.cache.disk, end.cache.miss) == (cold[LONG_AGO], 64 * refused, Miss.UNREADABLE)
        assert_right(made, cold)


@pytest.mark.parametrize("failing", range(4))
def test_a_state_that_cannot_be_exported_is_not_stored(tiny, tmp_path, cold, monkeypatch, failing):
    calls = 0
    export_state = Context.export_state

    def fail(self, sequence_id):
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise NativeError("the state of sequence 63 has 0 bytes instead of 16,500")
        return export_state(self, sequence_id)

    monkeypatch.setattr(Context, "export_state", fail)
    with kept_engine(tiny, tmp_path / "kv") as made:
        assert made.ask(LONG_AGO).text == cold[LONG_AGO]
        made.tidy()
        assert calls == failing + 1, "it is not tried again"
        assert_right(made, cold)
    with kept_engine(tiny, tmp_path / "kv") as made:
        assert_right(made, cold)


# Notes: nothing in them is needed, and nothing in them may change an answer


@pytest.mark.parametrize(
    "damage", [flip, truncate, lambda _data, _choose: b"", lambda data, choose: choose.randbytes(len(data))]
)
@pytest.mark.parametrize(("name", "rounds"), [(FILE_NAME, 10), ("about.json", 2), ("weights", 3)])
def test_what_is_damaged_beside_the_blocks_costs_nothing_but_itself(tiny, filled, cold, tmp_path, name, rounds, damage):
    choose = random.Random(5)
    for number in range(rounds):
        folder = shutil.copytree(filled, tmp_path / str(number))
        (path,) = folder.rglob(name)
        path.write_bytes(damage(path.read_bytes(), choose))
        with kept_engine(tiny, folder) as made:
            assert name == "weights" or made.ask(LONG_AGO).end.cache.disk == 199
            assert_right(made, cold)
        with kept_engine(tiny, folder) as made:
            assert made.ask(UNRELATED).end.cache.disk == 199, "what is computed is kept as ever"


WRONG = {
    "another text": msgspec.msgpack.encode([FIRST_BYTE + byte for byte in b"assistant\nno"]),
    "a control token": msgspec.msgpack.encode([TURN_END]),
    "below the vocabulary": msgspec.msgpack.encode([-1]),
    "beyond the vocabulary": msgspec.msgpack.encode([1 << 20]),
    "beyond 32 bits": msgspec.msgpack.encode([1 << 40]),
    "no tokens": msgspec.msgpack.encode([]),
    "no numbers": msgspec.msgpack.encode(["yes"]),
    "no list": msgspec.msgpack.encode({"a": 1}),
    "no message": b"\xc1",
    "an integer": 5,
    "a text": "yes",
}


@pytest.mark.parametrize("tokens", WRONG.values(), ids=WRONG)
def test_a_note_that_does_not_spell_its_text_is_not_followed(tiny, folder, cold, tokens):
    (notes,) = folder.rglob(FILE_NAME)
    with contextlib.closing(sqlite3.connect(notes)) as database, database:
        database.execute(
            "INSERT INTO answers (key, tokens, time_s) VALUES (?, ?, 0)", (_key("", b"assistant\nyes"), tokens)
        )
    history = (Text("<|im_start|>assistant\nyes<|im_end|>", special=True),)
    with kept_engine(tiny, folder) as made:
        assert made.engine.prepare(GenerateRequest("a", history)).prompt == made.loaded.vocab.encode(history)
        assert_right(made, cold)


def test_notes_that_cannot_be_read_are_left_out(tmp_path):
    notes = CacheNotes(tmp_path, 1 << 20)
    for name in ("first", "last"):
        notes.add([], Note(name, 100.0, 5, CacheReport()))
    notes.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.executemany("INSERT INTO notes (note) VALUES (?)", [(b"\xc1",), (5,), ("text",), (b"",)])
    assert [note.request_id for note in read_notes(tmp_path)] == ["first", "last"]
    forget_notes(tmp_path, 101.0)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        assert database.execute("SELECT count(*) FROM notes").fetchone() == (0,)


# No code in files: F9, CVE-2025-69872

UNPICKLING = """
import sys
from pathlib import Path

seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event == "pickle.find_class" else None)

import diskcache
from kept_kv import LONG_AGO, kept_engine

def refuse(*_arguments, **_options):
    raise AssertionError("a diskcache.Cache is made")

diskcache.Cache.__init__ = refuse
model, folder = map(Path, sys.argv[1:])
for cached in (0, 199):
    with kept_engine(model, folder) as made:
        assert made.ask(LONG_AGO).end.cache.disk == cached
assert not seen, "something is unpickled"

import pickle
try:
    pickle.loads(b"cos\\nno_such_name\\n.")
except AttributeError:
    pass
assert seen, "the guard sees nothing"
"""


def test_an_engine_unpickles_nothing(tiny, tmp_path):
    support = str(Path(kept_kv.__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), support]),
    }
    subprocess.run([sys.executable, "-c", UNPICKLING, tiny, tmp_path / "kv"], check=True, env=environment, timeout=60)
