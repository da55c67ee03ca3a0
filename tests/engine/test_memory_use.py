"""What may still be taken: the machine's memory, or less where a control group of this process has a limit."""

from types import SimpleNamespace

import psutil
import pytest

from pinyon.engine.memory_use import available_bytes, resident_bytes

MACHINE = 1000
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=MACHINE))


@pytest.fixture
def groups(tmp_path):
    """Make groups of version 1 or 2 with a limit, what is used and what of that can be taken back; return what remains."""
    own = tmp_path / "own"

    def make(memberships, *made, version=V2, folder=""):
        own.write_text(memberships)
        for path, limit, used, reclaimable in made:
            group = tmp_path / folder / path
            group.mkdir(parents=True, exist_ok=True)
            for name, text in zip(version, (limit, used, f"anon 3\n{version[2]} {reclaimable}"), strict=True):
                (group / (name if "." in name else "memory.stat")).write_text(f"{text}\n")
        return available_bytes(tmp_path, own)

    return make


def test_without_a_limit_the_machine_s_memory_counts(groups, tmp_path):
    assert available_bytes(tmp_path, tmp_path / "missing") == MACHINE
    assert groups("0::/\n") == MACHINE
    assert groups("0::/user\n", ("user", "max", 70, 20)) == MACHINE
    assert groups("4:memory:/user\n", ("user", 2**63 - 4096, 70, 20), version=V1, folder="memory") == MACHINE


def test_a_group_s_limit_counts_less_what_it_uses_and_cannot_take_back(groups):
    assert groups("0::/user\n", ("user", 100, 70, 20)) == 50
    assert groups("9:cpu:/\n4:cpu,memory:/user\n", ("user", 100, 70, 20), version=V1, folder="memory") == 50
    assert groups("0::/\n", ("", 100, 200, 0)) == 0


def test_the_tightest_of_all_groups_above_counts(groups):
    made = [("a/b", 100, 10, 0), ("a", 50, 10, 0), ("", "max", 10, 0)]
    assert groups("0::/a/b\n", *made) == 40


def test_a_container_that_does_not_see_its_own_path_has_the_root_s_limit(groups):
    assert groups("4:memory:/docker/1234\n", ("", 100, 70, 20), version=V1, folder="memory") == 50


def test_a_larger_limit_than_the_machine_s_memory_is_none(groups):
    assert groups("0::/\n", ("", 9999, 0, 0)) == MACHINE


def test_this_process_takes_some():
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
