"""However many prompts come: bytes on disk stay under their cap, counted by walking the folder, and no list grows without end."""

import asyncio
import random

import psutil
import pytest
from asking import ask
from fakes import BLOCK_BYTES, make_engine, run_to_end
from faulty_files import RecordingFiles, folder_bytes, settle
from kept_kv import bytes_in, kept_engine

from pinyon.engine import answer_memory, block_store, cache_notes
from pinyon.engine.answer_memory import Spelling
from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_file import file_bytes
from pinyon.engine.block_store import TAIL_REST_S, BlockStore
from pinyon.engine.cache_notes import FILE_NAME, CacheNotes, Note, read_notes
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.config import EngineConfig
from pinyon.engine.file_system import FileSystem

MIB = 1 << 20
LONG = [pytest.mark.long, pytest.mark.timeout(1800)]
NOTES_BYTES = 1 << 16


# The disk: F6


@pytest.mark.parametrize("prompts", [300, pytest.param(10_000, marks=LONG)])
def test_distinct_prompts_stay_under_the_cap_at_every_step(tmp_path, prompts):
    cap_bytes = 20 * file_bytes(BLOCK_BYTES) + 5
    store = BlockStore(4 * BLOCK_BYTES)
    made = make_engine(cells=256, store=store)
    store._clock = clock = made.runner.memory.clock
    files = RecordingFiles()
    disk = BlockDisk(tmp_path, bytes(32), files, clock)
    store.attach(disk, disk.scan(), cap_bytes)
    fullest, choose = 0, random.Random(3)
    for number in range(prompts):
        prompt = f"{number:05}" + "abcdefgh" * choose.randrange(8, 20)
        for _ in run_to_end(made.engine, ask("a", prompt, max_tokens=2)):
            clock.now += TAIL_REST_S
        while made.engine.tidy() == 0.0:
            pass
        settle(disk)
        fullest = max(fullest, folder_bytes(tmp_path))
        assert fullest <= cap_bytes
    assert fullest > 0.9 * cap_bytes, "the cap was never near"
    assert files.peak_bytes <= cap_bytes, "while files were written"
    made.engine.close()


@pytest.mark.model
@pytest.mark.parametrize("prompts", [120, pytest.param(10_000, marks=LONG)])
def test_all_that_a_model_leaves_stays_under_the_cap(tiny, tmp_path, monkeypatch, prompts):
    """Blocks, notes with their journal, small files: as anybody would count them, at each write of a block."""
    folder, walked = tmp_path / "kv", []

    def walk(method):
        def walking(self, *arguments):
            method(self, *arguments)
            walked.append(bytes_in(folder))

        return walking

    for name in ("write", "replace", "delete"):
        monkeypatch.setattr(FileSystem, name, walk(getattr(FileSystem, name)))
    with kept_engine(tiny, folder, disk_cap_bytes=MIB) as made:
        for number in range(prompts):
            text = f"<|im_start|>user\n{number:05} {'abcdefgh' * 9}<|im_end|>\n<|im_start|>assistant\n"
            made.ask(text, max_tokens=50)
            made.tidy()
            walked.append(bytes_in(folder))
    assert bytes_in(folder) <= MIB
    assert 0.8 * MIB < max(walked) <= MIB


# Notes


def test_notes_that_are_full_forget_the_older_half(tmp_path):
    notes = CacheNotes(tmp_path, NOTES_BYTES)
    for number in range(120):
        note = Note(str(number), 0.0, 100, CacheReport())
        notes.add([Spelling(number.to_bytes(16, "big"), tuple(range(1000, 1700)), 0.0)], note)
        if number % 10 == 0:
            notes.answers()  # all of it is written now
            assert (tmp_path / FILE_NAME).stat().st_size <= NOTES_BYTES
    kept = [int.from_bytes(key, "big") for key, *_ in notes.answers()]
    assert 5 < len(kept) < 30
    assert kept[-1] >= 118, "what came when it was full is lost, and nothing newer"
    assert len({*range(kept[0], 120)} - {*kept}) <= 3
    assert int(read_notes(tmp_path)[-1].request_id) == kept[-1]
    notes.close()


def test_whose_blocks_are_is_not_lost_when_the_notes_are_full(tmp_path):
    notes, keys = CacheNotes(tmp_path, NOTES_BYTES), [bytes([number]) * 32 for number in range(120)]
    for key in keys:
        notes.add([Spelling(key[:16], tuple(range(1000, 1700)), 0.0)], None)
        notes.add_noted([("talk", key)])
    notes.close()
    again = CacheNotes(tmp_path, NOTES_BYTES)
    assert len(again.answers()) < 30, "they were full"
    assert {*keys} <= {key for _, key in again.noted(keys)}
    again.close()


def test_notes_that_are_larger_than_they_may_be_begin_anew(tmp_path):
    for cap_bytes, is_known in [
        (NOTES_BYTES, False),
        (NOTES_BYTES, True),
        (NOTES_BYTES // 2, False),
        (NOTES_BYTES // 2, True),
    ]:
        notes = CacheNotes(tmp_path, cap_bytes)
        assert bool(notes.answers()) == is_known
        for number in range(30):
            notes.add([Spelling(bytes([number]) * 16, tuple(range(1000, 1700)), 0.0)], None)
        notes.close()
        assert (tmp_path / FILE_NAME).stat().st_size <= cap_bytes


# What is in memory, after R70


def spelled_tokens(memory):
    return sum(len(spelling.tokens) for spelling in memory._answers.values())


@pytest.mark.model
def test_nothing_grows_with_the_number_of_requests(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_memory, "MAX_ANSWERS", 15)
    monkeypatch.setattr(cache_notes, "MAX_ANSWERS", 15)
    monkeypatch.setattr(cache_notes, "MAX_NOTES", 30)
    monkeypatch.setattr(block_store, "MAX_EVICTED", 50)
    with kept_engine(tiny, tmp_path / "kv", ram_cap_bytes=200_000, disk_cap_bytes=MIB) as made:
        engine, kv = made.engine, made.engine._kv
        for number in range(400):
            text = f"<|im_start|>user\n{number:05} {'abcdefgh' * 8}<|im_end|>\n<|im_start|>assistant\n"
            request = ask("a", text, max_tokens=4, private=number % 7 == 0, use_cache=number % 5 != 0)
            engine.submit(engine.prepare(request))
            for _ in range(1 + number % 3):
                engine.step()
            if number % 3 == 0:
                engine.cancel("a")
            while engine.busy:
                engine.step()
            made.tidy()
            engine.prepare(request)  # one that goes before it is submitted
        kv.check()
        kv._store.check()
        assert engine._answers == {}
        assert (engine._scheduler.running, [*engine._scheduler.waiting]) == ([], [])
        assert len(engine._past_answers._answers) == 15
        assert engine._past_answers._tokens == spelled_tokens(engine._past_answers)
        assert len(kv._store._evicted) == 50
        assert {*kv._blocks._stored} <= {*made.leaves}
        assert len(made.leaves) <= 63
        assert len(kv._store._roots) == 1
        assert len(kv._cells._tree._roots) <= 2, "one for the namespace, one for those that share nothing"
        blocks = len([*kv._store.root("").with_descendants()])
        assert blocks < 80
        for tier in (kv._store._ram, kv._store._files):
            assert len(tier._heap) <= 8 * blocks
            assert len(tier._holds) <= blocks
        assert len(kv._store._unwritten) <= blocks
    (own,) = {path.parent for path in (tmp_path / "kv").rglob("*.kv")}
    assert 10 < len(read_notes(own)) <= 30


def test_answers_are_forgotten_by_their_size_too(monkeypatch):
    monkeypatch.setattr(answer_memory, "MAX_TOKENS", 1000)
    memory = answer_memory.AnswerMemory(lambda token: bytes([token]), lambda token: token == 0)
    for number in range(50):
        tokens = [0, *str(number).encode(), *b"x" * 98]
        memory.remember("", tokens, 1)
        assert memory.find("", bytes(tokens[1:])) == tuple(tokens[1:])
    assert 8 <= len(memory._answers) <= 10
    for _ in range(20):
        memory.remember("", [0, *b"the same again"], 1)
    assert memory._tokens == spelled_tokens(memory) <= 1000


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_worker_s_memory_stays_as_it_is(clients, tiny, tmp_path):
    """3,000 short requests, every tenth of them cancelled; RAM and disk full long before the first look."""
    config = EngineConfig(
        bytes(tiny), 1, kv_ram_cap_bytes=4 * MIB, kv_folder=bytes(tmp_path / "kv"), kv_disk_cap_bytes=8 * MIB
    )
    client = clients(config)
    process, seen = psutil.Process(await client.pid()), []
    for number in range(4000):
        request = ask(f"r{number}", f"{number:05} {'abcdefgh' * 9}", max_tokens=3)
        events = client.generate(request)
        async for _ in events:
            if number % 10 == 0:
                await client.cancel(request.id)
        if number % 1000 == 999:
            memory, descriptors = process.memory_full_info(), []
            for _ in range(20):  # a block's file is open while it is written
                descriptors.append(process.num_fds())
                await asyncio.sleep(0.1)
            seen.append((memory.uss + memory.swap, min(descriptors), process.num_threads()))
    assert max(uss for uss, _, _ in seen) - seen[0][0] < 10 * MIB
    assert len({(descriptors, threads) for _, descriptors, threads in seen}) == 1
