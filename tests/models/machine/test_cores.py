"""How many threads compute: the fast physical cores of the mask, at most the container's quota, at least one."""

import os

import psutil
import pytest
from control_group_files import control_groups

from pinyon.models.machine import cores
from pinyon.models.machine.cores import read_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine of physical cores, each a list of its logical ones; return what reads it."""

    def make(siblings, *, memberships="", groups=None, speeds=None, files=None, tells=True, mac=None):
        logical = [cpu for core in siblings for cpu in core]
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 99 if logical else len(siblings))
        monkeypatch.setattr(os, "cpu_count", lambda: len(logical))
        devices = tmp_path / "devices"
        written = dict(files or {})
        for core in siblings if tells else ():
            for cpu in core:
                written[f"system/cpu/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, core))
        for file, by_cpu in (speeds or {}).items():
            written |= {f"system/cpu/cpu{cpu}/{file}": str(speed) for cpu, speed in by_cpu.items()}
        for name, text in written.items():
            (devices / name).parent.mkdir(parents=True, exist_ok=True)
            (devices / name).write_text(f"{text}\n")
        made = control_groups(tmp_path, memberships, groups)
        return lambda mask=tuple(logical): read_cores(made, devices, mask, (mac or {}).get)

    return make


FOUR = [[0], [1], [2], [3]]
FOUR_OF_TWO = [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_without_a_limit_each_physical_core_has_a_thread(machine):
    found = machine(FOUR_OF_TWO)()
    assert (found.physical, found.logical, found.usable, found.allowed, found.threads) == (4, 8, 4, 8, 4)
    assert (found.quota, found.efficiency) == (None, 0)
    assert found.threads_from == "one for each physical core that this process may use"


@pytest.mark.parametrize(
    ("mask", "threads"),
    [((0, 1, 2, 3), 4), ((0, 4), 1), ((0, 4, 1), 2), ((6,), 1), ((4, 5, 6), 3)],
    ids=["taskset -c 0-3", "two siblings", "two siblings and another", "one CPU", "three second threads"],
)
def test_siblings_in_the_mask_are_one_core(machine, mask, threads):
    found = machine(FOUR_OF_TWO)(mask)
    assert (found.allowed, found.usable, found.threads) == (len(mask), threads, threads)
    assert ("siblings" in found.usable_from) == (threads < len(mask))


def test_siblings_are_also_known_by_the_older_name_and_as_spans(machine):
    files = {f"system/cpu/cpu{cpu}/topology/thread_siblings_list": "0-1" for cpu in (0, 1)}
    assert machine([[0, 1]], tells=False, files=files)().threads == 1


@pytest.mark.parametrize("text", ["", "x", "0-", "-"])
def test_where_siblings_are_not_told_the_system_s_count_of_cores_is_the_most(machine, text):
    files = {f"system/cpu/cpu{cpu}/topology/core_cpus_list": text for cpu in range(8)}
    found = machine(FOUR_OF_TWO, tells=False, files=files)
    assert (found().threads, found((0, 1)).threads) == (4, 2)


@pytest.mark.parametrize(
    ("text", "quota", "threads"),
    [
        ("200000 100000", 2, 2),
        ("250000 100000", 2.5, 2),
        ("50000 100000", 0.5, 1),
        ("900000 100000", 9, 4),
        ("max 100000", None, 4),
        ("200000", None, 4),
        ("200000 0", None, 4),
        ("-1 100000", None, 4),
        ("lots", None, 4),
        ("", None, 4),
    ],
)
def test_a_quota_s_whole_cores_are_the_most(machine, text, quota, threads):
    found = machine(FOUR, memberships="0::/a\n", groups={"a/cpu.max": text})()
    assert (found.quota, found.threads) == (quota, threads)
    assert ("/a" in found.quota_from) == (quota is not None)


def test_the_tightest_quota_of_all_groups_above_counts(machine):
    groups = {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "800000 100000"}
    found = machine(FOUR, memberships="0::/a/b\n", groups=groups)()
    assert (found.threads, found.quota_from) == (3, "the CPU quota of the control group /a")


@pytest.mark.parametrize(("quota", "threads"), [("200000", 2), ("-1", 4), ("50000", 1), ("?", 4)])
def test_version_1_has_the_quota_in_two_files(machine, quota, threads):
    files = {"cpu,cpuacct/a/cpu.cfs_quota_us": quota, "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}
    assert machine(FOUR, memberships="3:cpu,cpuacct:/a\n", groups=files)().threads == threads


def test_a_quota_and_a_mask_both_hold(machine):
    made = machine(FOUR_OF_TWO, **TWO_CORES_TIME)
    assert (made((0, 4)).threads, made((0, 1, 2)).threads) == (1, 2)
    assert made((0, 1, 2)).threads_from == "the quota's whole cores"


INTEL = [[0, 1], [2, 3], [4], [5], [6], [7]]
"""Two cores of two threads, four efficiency cores."""
TWO_CORES_TIME = {"memberships": "0::/\n", "groups": {"cpu.max": "200000 100000"}}
LISTED = {"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-7"}


def test_efficiency_cores_would_hold_up_the_others(machine):
    made = machine(INTEL, files=LISTED)
    found = made()
    assert (found.physical, found.efficiency, found.threads) == (6, 4, 2)
    assert found.threads_from.endswith("and that is no efficiency core")
    assert found.efficiency_from.endswith("/cpu_atom")
    assert (made((0, 1, 4)).efficiency, made((0, 1, 4)).threads) == (1, 1)
    assert made((4, 5, 6)).threads == 3, "alone they hold up nobody"


@pytest.mark.parametrize("file", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
@pytest.mark.parametrize(
    ("speeds", "efficiency"),
    [((250, 250, 1024, 1024), 2), ((700, 700, 1024, 1024), 0), ((1024, 1024, 1024, 1024), 0), ((540, 540, 780, 1024), 2)],
    ids=["small and large", "middle and large", "alike", "small, middle, large"],
)  # fmt: skip
def test_cores_that_are_much_slower_are_known_by_their_speed(machine, file, speeds, efficiency):
    found = machine(FOUR, speeds={file: dict(enumerate(speeds))})()
    assert (found.efficiency, found.threads) == (efficiency, 4 - efficiency)


def test_speeds_that_are_not_all_told_say_nothing(machine):
    found = machine(FOUR, speeds={"cpu_capacity": {0: 250, 1: 1024, 2: "?"}})()
    assert (found.efficiency, found.threads) == (0, 4)


def test_macos_tells_how_many_cores_are_fast(machine):
    made = machine([[cpu] for cpu in range(8)], tells=False, mac={"hw.perflevel0.physicalcpu": 6})
    assert (made().efficiency, made().threads) == (2, 6)
    assert machine(FOUR, tells=False, mac={"hw.perflevel0.physicalcpu": 4})().threads == 4


@pytest.mark.parametrize(
    ("planted", "broken", "made", "mask", "threads"),
    [
        ("_siblings", lambda cpu, _devices: frozenset({cpu}), {"siblings": FOUR_OF_TWO}, (0, 4), 1),
        ("_quota", lambda _group: None, {"siblings": FOUR, **TWO_CORES_TIME}, (0, 1, 2, 3), 2),
        ("_slow_cpus", lambda *_: (frozenset(), ""), {"siblings": INTEL, "files": LISTED}, (0, 1, 2, 3, 4), 2),
    ],
)
def test_a_planted_fault_makes_too_many_threads(machine, monkeypatch, planted, broken, made, mask, threads):
    read = machine(**made)
    assert read(mask).threads == threads
    monkeypatch.setattr(cores, planted, broken)
    assert read(mask).threads > threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="masks are Linux'")
def test_this_process_gets_what_its_mask_allows():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        found = read_cores()
    finally:
        os.sched_setaffinity(0, before)
    assert (found.allowed, found.usable, found.threads) == (1, 1, 1)
    whole = read_cores()
    assert 1 <= whole.threads <= whole.usable <= len(before)
