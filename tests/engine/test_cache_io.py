"""The operating system says no, at any call: answers are right and come in full, one warning tells, and no file is half there."""

import errno
import itertools
import shutil
import sys

import psutil
import pytest
from asking import answer, ask, end_of, ids_of
from fake_disk import FakeDisk
from fakes import BLOCK_BYTES, assert_idle, make_engine, run_to_end, text_of
from faulty_files import Fault, FaultyFiles, RecordingFiles, settle
from kept_kv import LONG_AGO, kept_engine

from pinyon.engine import block_file
from pinyon.engine.block_disk import REST_S, BlockDisk
from pinyon.engine.block_store import TAIL_REST_S, BlockStore
from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Finished
from pinyon.engine.file_system import FileSystem

ABC = LONG_AGO[:150]
PROMPTS = [
    ABC,
    ABC[:64] + "goes on in another way, and then further",
    ABC + "to be continued",
    "Once upon a time. " * 5,
]


def cold_answers():
    return [
        text_of(run_to_end(make_engine(cells=512).engine, ask("a", prompt, max_tokens=3))["a"]) for prompt in PROMPTS
    ]


@pytest.fixture(scope="module")
def cold():
    return cold_answers()


def engine_over(folder, files):
    """An engine with room for three blocks in RAM; without its disk where that cannot even be looked at."""
    store = BlockStore(3 * BLOCK_BYTES)
    made = make_engine(cells=512, store=store)
    store._clock = clock = made.runner.memory.clock
    disk = BlockDisk(folder, bytes(32), files, clock)
    try:
        store.attach(disk, disk.scan(), 1 << 20)
    except OSError:
        disk.close()
        store.attach(FakeDisk(), [], 0)
        assert files.calls[-1] == ("paths", folder.name)
    return made


def use(made, cold):
    """Have every prompt answered twice, from the disk if it has it, with all that an engine does in between."""
    for number in (0, 1, 2, 3, 0, 1):
        (events,) = run_to_end(made.engine, ask("a", PROMPTS[number], max_tokens=3)).values()
        assert isinstance(events[-1], Finished)
        assert text_of(events) == cold[number]
        made.kv.make_room(512)
        work(made)
        made.runner.memory.clock.now += TAIL_REST_S
        work(made)
        assert_idle(made)


def work(made):
    while made.engine.tidy() == 0.0:
        pass
    if isinstance(disk := made.kv._store._disk, BlockDisk):
        settle(disk)
    made.engine.tidy()


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", Fault)
def test_whatever_call_fails_answers_are_right(tmp_path, cold, caplog, fault, lasting):
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    made = engine_over(earlier, RecordingFiles())
    use(made, cold)
    made.engine.close()
    for number in itertools.count():
        folder = shutil.copytree(earlier, tmp_path / str(number))
        for path in sorted(folder.iterdir())[::2]:
            path.unlink()
        files = FaultyFiles(fault, number, lasting=lasting)
        caplog.clear()
        made = engine_over(folder, files)
        use(made, cold)
        made.engine.close()
        assert len(caplog.records) <= 1
        if fault is not Fault.SHORT:
            for path in folder.glob("*.kv"):
                block_file.decode(path.read_bytes())
        made = engine_over(folder, RecordingFiles())
        use(made, cold)
        made.engine.close()
        assert not [*folder.glob("*.new")]
        shutil.rmtree(folder)
        if not files.has_failed:
            assert number > 20
            return


def test_a_disk_that_stays_full_is_tried_once_a_minute(tmp_path, cold, caplog):
    files = FaultyFiles(Fault.NO_SPACE, 1, lasting=True)
    made = engine_over(tmp_path, files)
    clock, began = made.runner.memory.clock, made.runner.memory.clock.now
    for _ in range(30):
        use(made, cold)
    rests = int((clock.now - began) / REST_S) + 1
    assert rests > 2
    assert 2 <= len(caplog.records) <= rests
    assert len(files.calls) <= 5 * rests, "a storm of tries"
    assert not [*tmp_path.glob("*.kv")]
    made.engine.close()


@pytest.mark.model
@pytest.mark.parametrize("is_described", [True, False])
def test_a_disk_that_is_full_from_the_start_is_still_read_from(tiny, tmp_path, monkeypatch, is_described):
    folder = tmp_path / "kv"
    with kept_engine(tiny, folder) as made:
        text = made.ask(LONG_AGO).text
    if not is_described:
        next(folder.rglob("about.json")).unlink()

    def refuse(_self, path, _parts):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(FileSystem, "write", refuse)
    with kept_engine(tiny, folder) as made:
        again = made.ask(LONG_AGO)
        assert (again.text, again.end.cache.disk) == (text, len(LONG_AGO) - 1)
        made.ask(LONG_AGO[::-1])


# A real disk that is full for a real worker: no file can have more bytes than this.

FULL_BYTES = 17_000


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes")
async def test_a_worker_whose_disk_is_full_answers_and_says_so_once(clients, tiny, tmp_path):
    folder = tmp_path / "kv"
    config = EngineConfig(bytes(tiny), 1, kv_ram_cap_bytes=1 << 20, kv_folder=bytes(folder), kv_disk_cap_bytes=1 << 24)
    uncached = clients(EngineConfig(bytes(tiny), 1))
    before = clients(config)
    await answer(before, ask("a", "x", max_tokens=1))  # the notes are there, and no block
    await before.close()
    client = clients(config)
    pid = await client.pid()
    psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    for number in range(8):
        request = ask("a", f"{number} {LONG_AGO[: 190 - number]}", max_tokens=5)
        events = await answer(client, request)
        assert isinstance(end_of(events), Finished)
        assert ids_of(events) == ids_of(await answer(uncached, request))
    assert await client.pid() == pid, "the worker lives"
    await client.close()
    log = (tmp_path / "engine-2.log").read_text(errors="replace")
    assert log.count("cannot be written to disk") == 1, log
    for path in folder.rglob("*.kv"):
        block_file.decode(path.read_bytes())
    assert not [*folder.rglob("*.new")]


@pytest.mark.model
async def test_a_worker_without_a_folder_answers_and_says_why(clients, tiny, tmp_path):
    (tmp_path / "kv").write_text("a file")
    client = clients(EngineConfig(bytes(tiny), 1, kv_ram_cap_bytes=1 << 20, kv_folder=bytes(tmp_path / "kv")))
    uncached = clients(EngineConfig(bytes(tiny), 1))
    request = ask("a", LONG_AGO, max_tokens=5)
    assert ids_of(await answer(client, request)) == ids_of(await answer(uncached, request))
    assert end_of(await answer(client, request)).usage.cached_tokens == len(LONG_AGO) - 1
    await client.close()
    assert (tmp_path / "engine-0.log").read_text(errors="replace").count("no KV is kept on disk") == 1
