"""What the KV of earlier prompts may take, and why it may not be on disk: one line that says what is the matter."""

from types import SimpleNamespace

import psutil
import pytest

from pinyon.app import kv_budget
from pinyon.app.kv_budget import LEAST_RAM_BYTES, MAX_DISK_BYTES, MIB, KvBudget, KvClaim
from pinyon.app.kv_files import held
from pinyon.app.settings import Folders, Settings

GIB = 1 << 30


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture
def machine(monkeypatch):
    """What the machine says of itself; the test may change it."""
    found = SimpleNamespace(available_bytes=8 * GIB, free=50 * GIB, total=100 * GIB, is_removable=False)
    monkeypatch.setattr(kv_budget, "read_ram", lambda: found)
    monkeypatch.setattr(psutil, "disk_usage", lambda _path: found)
    monkeypatch.setattr(kv_budget, "_is_removable", lambda _folder: found.is_removable)
    return found


def claimed(folders, **settings):
    return KvClaim().claimed(kv_budget.kv_budget(folders, Settings(**settings)))


@pytest.mark.parametrize(("free", "cap"), [(50 * GIB, 5 * GIB), (900 * GIB, MAX_DISK_BYTES)])
def test_a_share_of_what_is_free_may_be_taken(folders, machine, free, cap):
    machine.free = free
    budget = claimed(folders)
    assert budget == KvBudget(2 * GIB, cap, folders.kv)
    assert folders.kv.stat().st_mode & 0o777 == 0o700


def test_what_is_kept_already_does_not_lower_the_cap(folders, machine):
    own = folders.kv / "0"
    own.mkdir(parents=True)
    with (own / "block.kv").open("wb") as file:
        file.truncate(GIB)
    machine.free -= GIB
    assert claimed(folders).disk_cap_bytes == 5 * GIB


def test_settings_come_before_what_the_machine_says(folders, machine):
    machine.is_removable = True
    budget = claimed(folders, cache_ram_mib=3, cache_disk_mib=7)
    assert budget == KvBudget(3 * MIB, 7 * MIB, folders.kv, is_asked=True)


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {"cache_disk_mib": 0}, "the setting cache_disk_mib is 0"),
        ({}, {"cache_ram_mib": 0, "cache_disk_mib": 7}, "the setting cache_ram_mib is 0"),
        ({"free": 4 * GIB}, {}, "is nearly full: 4,096 MiB are free"),
        ({"is_removable": True}, {}, "is on a removable disk"),
    ],
    ids=["setting", "no memory", "full", "removable"],
)
def test_where_nothing_is_kept_on_disk_it_says_why(folders, machine, changes, settings, words):
    vars(machine).update(changes)
    budget = claimed(folders, **settings)
    assert (budget.folder, budget.disk_cap_bytes) == (None, 0)
    assert words in budget.why_no_disk
    assert "\n" not in budget.why_no_disk


def test_a_folder_that_cannot_be_made_is_told_from_one_that_is_in_use(folders, machine):
    folders.cache.write_text("a file")
    assert claimed(folders).why_no_disk == f"{folders.kv} cannot be used: Not a directory"
    folders.cache.unlink()
    (folders.kv / "lock").mkdir(parents=True)
    assert claimed(folders).why_no_disk.startswith(f"{folders.kv} cannot be locked: ")
    (folders.kv / "lock").rmdir()
    with held(folders.kv):
        assert claimed(folders).why_no_disk == f"another process uses {folders.kv}"


def test_the_folder_is_free_again_after_the_claim(folders, machine):
    claim = KvClaim()
    assert claim.claimed(kv_budget.kv_budget(folders, Settings())).folder == folders.kv
    assert claim.is_held
    assert claimed(folders).folder is None
    claim.release()
    assert not claim.is_held
    assert claimed(folders).folder == folders.kv


def test_a_path_that_is_no_text_is_told_as_text(tmp_path, machine):
    machine.is_removable = True
    budget = claimed(Folders.of_user({"PINYON_HOME": str(tmp_path / "\udcff")}))
    assert "\\udcff" in budget.why_no_disk


def test_what_one_model_is_granted_gives_way_to_what_it_needs():
    budget = KvBudget(1000 * MIB, 600 * MIB)
    assert budget.reserved_bytes([]) == LEAST_RAM_BYTES
    assert [budget.granted_ram([], left * MIB) // MIB for left in (5000, 300, 0)] == [1000, 300, LEAST_RAM_BYTES // MIB]
    assert budget.granted_disk([]) == 600 * MIB
    asked = budget._replace(is_asked=True)
    assert (asked.reserved_bytes([]), asked.granted_ram([], 0)) == (1000 * MIB, 1000 * MIB)


@pytest.mark.parametrize("is_asked", [False, True])
def test_each_model_is_granted_an_equal_part_and_all_together_no_more_than_the_caps(is_asked):
    budget = KvBudget(1000 * MIB, 600 * MIB, is_asked=is_asked)
    for models in range(20):
        ram, disk = [1000 * MIB // (models + 1)] * models, [600 * MIB // (models + 1)] * models
        assert budget.granted_ram(ram, 2000 * MIB) == 1000 * MIB // (models + 1)
        assert budget.granted_disk(disk) == 600 * MIB // (models + 1)
        assert budget.granted_ram(ram, 0) == budget.reserved_bytes(ram)


def test_what_others_have_not_given_up_is_not_granted_again():
    budget = KvBudget(1000 * MIB, 600 * MIB, is_asked=True)
    assert (budget.granted_ram([900 * MIB], 2000 * MIB), budget.granted_disk([600 * MIB])) == (100 * MIB, 0)
    assert budget.reserved_bytes([1000 * MIB]) == 0
