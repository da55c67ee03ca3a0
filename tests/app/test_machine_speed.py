import asyncio
import json
import sys

import psutil
import pytest

from pinyon.app import machine_speed
from pinyon.app.errors import MeasuringError
from pinyon.app.machine_speed import measure_speed, stored_speed
from pinyon.app.settings import Folders
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES

ANSWER = """
import json, sys, time
order = json.load(sys.stdin)
assert order["threads"] == 2 and order["reference"]["block_bytes"] == 18
costs = [1e-11 * rows for rows in order["rows"]]

def say(**line):
    print(json.dumps(line), flush=True)

def types(run, factor=1.0):
    for kind in order["types"]:
        say(type="weight", number=kind["number"], weight_s=[factor * cost for cost in costs])

say(type="layer", layer_s=costs, width_s=costs)
"""
GOOD = f"{ANSWER}\ntypes(1, 2.0)\ntypes(2)\n"


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


async def measured(folders, script, **options):
    return await measure_speed(folders, 2, command=(sys.executable, "-c", script), **options)


def children():
    return psutil.Process().children()


async def test_the_least_of_all_passes_is_kept(folders):
    shares = []
    speed = await measured(folders, GOOD, on_progress=shares.append)
    costs = tuple(1e-11 * rows for rows in ROWS)
    assert set(speed.weight_s) == set(WEIGHT_TYPES)
    assert all(found == pytest.approx(costs) for found in speed.weight_s.values())
    assert speed.layer_s == pytest.approx(costs)
    assert stored_speed(folders, 2) == speed
    assert shares == sorted(shares)
    assert len(shares) == 1 + 2 * len(WEIGHT_TYPES)
    assert shares[-1] == 1
    assert children() == []


async def test_another_number_of_threads_build_or_cpu_has_no_speed_yet(folders, monkeypatch):
    await measured(folders, GOOD)
    assert stored_speed(folders, 3) is None
    with monkeypatch.context() as changed:
        changed.setattr(machine_speed, "cpu_name", lambda: "another CPU")
        assert stored_speed(folders, 2) is None
    with monkeypatch.context() as changed:
        changed.setattr(machine_speed, "distribution", _not_installed)
        assert stored_speed(folders, 2) is None
    assert stored_speed(folders, 2) is not None


def _not_installed(name):
    raise machine_speed.PackageNotFoundError(name)


async def test_a_type_that_the_build_does_not_have_is_left_out(folders):
    missing = ANSWER + 'taken = order["types"].pop(0)["number"]\n'
    missing += "for run in (1, 2):\n    say(type='weight', number=taken, weight_s=[])\n    types(run)\n"
    speed = await measured(folders, missing)
    assert set(speed.weight_s) == set(WEIGHT_TYPES[1:])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('out of luck')", "exit status 1; its last words: out of luck"),
        (f"{ANSWER}\nimport os; os.kill(os.getpid(), 9)", "exit status -9; its last words: nothing"),
        (f"{ANSWER}\ntime.sleep(600)", "said nothing for 1 s"),
        (f"{ANSWER}\nprint('hello')", "makes no sense"),
        (f"{ANSWER}\nsay(type='weight', number=2)", "makes no sense"),
        (f"{ANSWER}\ntypes(1)", "cannot be true"),
        (f"{ANSWER}\ntypes(1)\ntypes(2, -1.0)", "cannot be true"),
        ("import sys; print('x' * 10**6); sys.stdin.read()", "makes no sense"),
    ],
)
async def test_a_probe_that_fails_is_told_and_nothing_is_kept(folders, script, message):
    with pytest.raises(MeasuringError, match=message) as failure:
        await measured(folders, script, silence_limit_s=1)
    assert "\n" not in str(failure.value)
    assert stored_speed(folders, 2) is None
    assert children() == []


async def test_a_failure_leaves_what_was_measured_before(folders):
    before = await measured(folders, GOOD)
    with pytest.raises(MeasuringError):
        await measured(folders, "import sys; sys.exit(3)")
    assert stored_speed(folders, 2) == before


async def test_no_program_to_start_is_told(folders):
    with pytest.raises(MeasuringError, match="cannot be started"):
        await measure_speed(folders, 2, command=("/nowhere/python",))


async def test_who_stops_waiting_leaves_no_process(folders):
    task = asyncio.create_task(measured(folders, f"{ANSWER}\ntime.sleep(600)"))
    while not children():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


async def test_looking_up_what_is_stored_imports_nothing_heavy():
    code = "import pinyon.app.machine_speed, sys, json; print(json.dumps([m for m in ('numpy', 'llama_cpp') if m in sys.modules]))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert json.loads(output) == []


@pytest.mark.long
async def test_this_machine_can_be_measured(folders):
    speed = await measure_speed(folders, 2)
    assert set(speed.weight_s) == set(WEIGHT_TYPES)
