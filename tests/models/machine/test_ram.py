"""What a model could take: the machine's memory, or less where a control group of this process has a limit."""

from types import SimpleNamespace

import psutil
import pytest
from control_group_files import control_groups

from pinyon.models.machine import ram
from pinyon.models.machine.control_groups import ControlGroups
from pinyon.models.machine.ram import read_ram

TOTAL, FREE = 1000, 600
UNLIMITED_V1 = str(2**63 - 4096)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=TOTAL, available=FREE))


@pytest.fixture
def read(tmp_path):
    return lambda memberships, files=None: read_ram(control_groups(tmp_path, memberships, files))


def v2(folder, limit, used, stat="inactive_file 0", high="max"):
    files = {"memory.max": limit, "memory.high": high, "memory.current": used, "memory.stat": stat}
    return {f"{folder}{name}": str(text) for name, text in files.items()}


def v1(folder, limit, used, stat="total_inactive_file 0"):
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}
    return {f"{folder}{name}": str(text) for name, text in files.items()}


def figures(found):
    return found.limit_bytes, found.available_bytes


def test_elsewhere_than_on_linux_the_system_is_asked(tmp_path):
    found = read_ram(ControlGroups(tmp_path, tmp_path / "missing"))
    assert (found.total_bytes, *figures(found)) == (TOTAL, None, FREE)
    assert found.available_from.startswith("the operating system")


@pytest.mark.parametrize(
    ("memberships", "files"),
    [
        ("0::/\n", {}),
        ("0::/user\n", v2("user/", "max", 500)),
        ("4:memory:/user\n", v1("memory/user/", UNLIMITED_V1, 500)),
        ("0::/user\n", v2("user/", TOTAL, 900)),
        ("0::/user\n", v2("user/", 9 * TOTAL, 0)),
    ],
    ids=["no files", "max", "version 1's huge number", "the machine's size", "more than the machine has"],
)
def test_what_is_no_limit_changes_nothing(read, memberships, files):
    assert figures(read(memberships, files)) == (None, FREE)


def test_a_limit_counts_less_what_is_used_and_cannot_be_given_back(read):
    stat = "anon 30\ninactive_file 20\nactive_file 10\nslab_reclaimable 5\nslab 9\n"
    found = read("0::/a\n", v2("a/", 100, 70, stat))
    assert figures(found) == (100, 65)
    assert found.limit_from == "memory.max of the control group /a"
    assert found.available_from.startswith("memory.max of the control group /a, less ")


def test_version_1_counts_the_groups_below_as_well(read):
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 20\ntotal_active_file 10\n"
    found = read("9:cpu:/\n4:memory:/a\n", v1("memory/a/", 100, 70, stat))
    assert figures(found) == (100, 60)
    assert found.limit_from == "memory.limit_in_bytes of the control group /a"


def test_controllers_that_are_mounted_together(read):
    assert figures(read("4:cpu,memory:/a\n", v1("cpu,memory/a/", 100, 70))) == (100, 30)
    assert figures(read("4:memory,hugetlb:/b\n", v1("memory/b/", 90, 70))) == (90, 20)


def test_the_lowest_limit_and_the_smallest_rest_may_be_of_different_groups(read):
    found = read("0::/a/b\n", {**v2("a/b/", 100, 10), **v2("a/", 300, 280), **v2("", "max", 10)})
    assert figures(found) == (100, 20)
    assert "/a/b" in found.limit_from
    assert found.available_from.startswith("memory.max of the control group /a,")


def test_above_memory_high_programs_are_slowed_down_so_it_is_a_limit(read):
    found = read("0::/a\n", v2("a/", 200, 10, high=50))
    assert figures(found) == (50, 40)
    assert found.limit_from == "memory.high of the control group /a"


def test_a_full_group_leaves_nothing(read):
    assert figures(read("0::/a\n", v2("a/", 100, 150))) == (100, 0)


def test_more_cache_than_use_leaves_no_more_than_the_limit(read):
    assert figures(read("0::/a\n", v2("a/", 100, 10, "inactive_file 70"))) == (100, 100)


def test_a_machine_that_is_fuller_than_its_group_counts(read):
    found = read("0::/a\n", v2("a/", 900, 0))
    assert figures(found) == (900, FREE)
    assert found.available_from.startswith("the operating system")


@pytest.mark.parametrize("path", ["/docker/1234", "/../../elsewhere", "/docker/1234 (deleted)"])
def test_a_container_that_does_not_see_its_own_path_has_the_limit_of_what_it_sees(read, path):
    found = read(f"4:memory:{path}\n0::{path}\n", v1("memory/", 100, 70))
    assert (*figures(found), found.limit_from) == (100, 30, "memory.limit_in_bytes of the control group /")


def test_a_path_does_not_lead_out_of_the_folder_of_groups(read):
    assert figures(read("0::/../elsewhere\n", v2("../elsewhere/", 10, 0))) == (None, FREE)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"a/memory.max": "100"}, 100),
        ({"a/memory.max": "100", "a/memory.current": "?", "a/memory.stat": "inactive_file"}, 100),
        ({"a/memory.max": "100", "a/memory.current": "70", "a/memory.stat": "inactive_file x\n\n1 2 3\nactive_file 5"}, 35),
        ({"a/memory.max": "100", "a/memory.current": "70"}, 30),
    ],
    ids=["nothing else", "no numbers", "one line that can be read", "no counts"],
)  # fmt: skip
def test_a_limit_holds_also_where_the_other_files_are_missing_or_garbage(read, files, left):
    assert figures(read("0::/a\n", files)) == (100, left)


@pytest.mark.parametrize("limit", ["", "-1", "1e3", "a lot", "\N{DEVANAGARI DIGIT ONE}", "\0"])
def test_a_limit_that_is_no_number_is_none(read, limit):
    assert figures(read("0::/a\n", v2("a/", limit, 70))) == (None, FREE)


@pytest.mark.parametrize("memberships", ["", "\n", "0\n", "0:\n", "garbage", "\0:\0"])
def test_memberships_that_cannot_be_read_are_none(read, memberships):
    assert figures(read(memberships, v2("a/", 100, 0))) == (None, FREE)


@pytest.mark.parametrize(
    "planted",
    [
        {"_V2": ram._V2._replace(reclaimable=())},
        {"_V2": ram._V2._replace(limits=("memory.high",))},
        {"_V2": ram._V2._replace(used="memory.peak")},
    ],
    ids=["cache is use", "memory.max is ignored", "what is used is ignored"],
)
def test_a_planted_fault_changes_the_figures(read, monkeypatch, planted):
    files = v2("a/", 100, 70, "inactive_file 20")
    right = figures(read("0::/a\n", files))
    for name, value in planted.items():
        monkeypatch.setattr(ram, name, value)
    assert figures(read("0::/a\n", files)) != right == (100, 50)


def test_the_machine_s_own_figures_make_sense(monkeypatch):
    monkeypatch.undo()
    found = read_ram()
    assert 0 < found.available_bytes <= (found.limit_bytes or found.total_bytes) <= found.total_bytes
