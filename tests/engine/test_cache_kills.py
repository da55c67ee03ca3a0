"""Workers killed while they write KV: what is there afterwards is whole, is found again, and every answer is right. F2"""

import asyncio
import os
import random
import signal
import time

import pytest
from asking import answer, ask, end_of, ids_of
from kept_kv import ROOMY

from pinyon.engine import block_file
from pinyon.engine.cache_notes import read_notes
from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Finished

pytestmark = pytest.mark.model


def prompt(number):
    return f"{number:03}. " + "".join(f"{word:03}," for word in range(45))


async def kill_while_it_writes(client, folder, choose):
    """Keep the worker busy with new prompts, and kill it a moment after a file has been begun."""
    pid = await client.pid()

    async def keep_busy():
        for number in range(1000):
            if not isinstance((await answer(client, ask(f"k{number}", prompt(number), max_tokens=3)))[-1], Finished):
                return
        raise AssertionError("it was never killed")

    def strike():
        deadline = time.monotonic() + 5
        moment = choose.randrange(30)
        while time.monotonic() < deadline and moment:
            moment -= any(folder.rglob("*.new"))
        os.kill(pid, signal.SIGKILL)

    await asyncio.gather(keep_busy(), asyncio.to_thread(strike))


@pytest.mark.parametrize("kills", [8, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
async def test_a_kill_leaves_whole_blocks_and_right_answers(clients, tiny, tmp_path, kills):
    folder, choose = tmp_path / "kv", random.Random(kills)
    uncached = clients(EngineConfig(bytes(tiny), 1))
    numbers = range(3)
    right = [ids_of(await answer(uncached, ask("a", prompt(number), max_tokens=3))) for number in numbers]
    client = clients(
        EngineConfig(bytes(tiny), 1, kv_ram_cap_bytes=ROOMY, kv_folder=bytes(folder), kv_disk_cap_bytes=1 << 21)
    )
    unfinished = found = 0
    for _ in range(kills):
        await kill_while_it_writes(client, folder, choose)
        unfinished += any(folder.rglob("*.new"))
        for path in folder.rglob("*.kv"):
            block_file.decode(path.read_bytes())
        for number in numbers:
            events = await answer(client, ask(f"a{number}", prompt(number), max_tokens=3))
            assert ids_of(events) == right[number]
            found += end_of(events).cache.disk
    await client.close()
    assert unfinished, "no kill came while a file was written: nothing was tested"
    assert found, "the index was never found again"
    assert not [*folder.rglob("*.new")]
    (own,) = {path.parent for path in folder.rglob("*.kv")}
    assert read_notes(own)
