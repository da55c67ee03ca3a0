"""Downloads that go wrong in every way: they go on, or fail clean; only what was verified gets a file's name."""

import contextlib
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_hub import FakeFile, wait_until

from pinyon.models.errors import DownloadError, HubAccessError, ModelError, StoreError
from pinyon.models.hub import download
from pinyon.models.hub.address import Address
from pinyon.models.hub.download import fetch
from pinyon.models.hub.repo import chosen, read_repo

DATA = random.Random(1).randbytes(3_000_000)
OTHER = random.Random(2).randbytes(3_000_000)
OFFSETS = random.Random(3).sample(range(len(DATA)), 200)
NAME = "m-Q4_0.gguf"


@pytest.fixture
def models(tmp_path):
    return tmp_path / "home" / "models"


@pytest.fixture
def pulled(hub, models):
    """Pull the default model of the repository as it is now; returns what its files hold."""

    def pull(progress=lambda _: None, **options):
        repo = read_repo(Address("owner/repo"))
        return [path.read_bytes() for path in fetch(repo, chosen(repo, None), models, progress, **options)]

    hub.add("owner/repo", {NAME: DATA})
    return pull


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def partial_of(models: Path) -> Path:
    (partial,) = (models / ".partial").glob("*.part")
    return partial


def stopped_at(size: int):
    def progress(done: int) -> None:
        if done >= size:
            raise KeyboardInterrupt

    return progress


def ranges_of(hub):
    return [one.range for one in hub.of("cdn")]


def test_a_file_lies_in_a_folder_of_its_own_and_nothing_else_is_left(models, pulled):
    seen: list[int] = []
    assert pulled(seen.append) == [DATA]
    assert [name for name in files_in(models) if not name.endswith(".lock")] == [f"hub/owner/repo/{NAME}"]
    assert stat.S_IMODE((models / "hub" / "owner" / "repo" / NAME).stat().st_mode) == 0o600
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, len(DATA))


def test_shards_are_fetched_one_after_the_other_into_their_folders(hub, models, pulled):
    shards = {f"q8/m-Q8_0-0000{number}-of-00003.gguf": bytes([number]) * 100_000 for number in (1, 2, 3)}
    hub.add("owner/repo", shards)
    seen: list[int] = []
    assert pulled(seen.append) == list(shards.values())
    assert [name for name in files_in(models) if not name.endswith(".lock")] == [
        f"hub/owner/repo/{name}" for name in shards
    ]
    assert (seen == sorted(seen), seen[-1]) == (True, 300_000)


@pytest.mark.parametrize("offset", [0, 1, len(DATA) - 1, *OFFSETS[:20]])
def test_a_connection_cut_anywhere_goes_on_there(hub, pulled, offset):
    hub.faults.cuts = [offset]
    assert pulled() == [DATA]
    assert hub.bytes_sent == len(DATA)


@pytest.mark.long
def test_connections_cut_at_200_offsets(hub, models, pulled):
    for offset in OFFSETS:
        hub.faults.cuts = [offset, max(0, len(DATA) - offset - 5)]
        assert pulled() == [DATA]
        shutil.rmtree(models)


@pytest.mark.parametrize("offset", OFFSETS[:5])
def test_an_interrupted_pull_goes_on_with_what_is_here(hub, models, pulled, offset):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(max(offset, 1)))
    here = partial_of(models).stat().st_size
    assert 0 < here < len(DATA)
    hub.asked.clear()
    assert pulled() == [DATA]
    assert ranges_of(hub) == [f"bytes={here}-{len(DATA) - 1}"]


def test_a_cancelled_pull_says_how_to_go_on(models, pulled):
    stop = threading.Event()
    with pytest.raises(DownloadError, match=r"^stopped: `pinyon pull owner/repo:Q4_0` goes on from there$"):
        pulled(lambda done: stop.set() if done else None, cancelled=stop.is_set)
    assert partial_of(models).stat().st_size > 0
    assert pulled() == [DATA]


def test_a_file_that_changed_meanwhile_is_fetched_from_its_start(hub, models, pulled):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    old = partial_of(models)
    hub.repos["owner/repo"].files[NAME] = FakeFile(OTHER)
    hub.asked.clear()
    assert pulled() == [OTHER]
    assert ranges_of(hub) == [f"bytes=0-{len(OTHER) - 1}"]
    assert not old.exists()


def test_a_newer_file_replaces_an_older_one_when_it_is_whole(hub, models, pulled):
    assert pulled() == [DATA]
    hub.repos["owner/repo"].files[NAME] = FakeFile(OTHER)
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    assert (models / "hub" / "owner" / "repo" / NAME).read_bytes() == DATA
    assert pulled() == [OTHER]


def test_a_verified_file_is_not_fetched_again_and_a_damaged_one_is(hub, models, pulled):
    pulled()
    hub.asked.clear()
    assert pulled() == [DATA]
    assert ranges_of(hub) == []
    with (models / "hub" / "owner" / "repo" / NAME).open("r+b") as file:
        file.seek(1_000_000)
        file.write(bytes(1_000_000))
    assert pulled() == [DATA]
    assert ranges_of(hub) == [f"bytes=0-{len(DATA) - 1}"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "damages",
            r"m-Q4_0\.gguf arrived wrong and was deleted: 3,000,000 bytes with SHA-256 \w{64} instead of 3,000,000",
        ),
        ("compresses", "the hub sent compressed bytes"),
        ("is_web_page", "the hub sent a web page"),
        ("adds_to_size", "the hub sent a file of 3000001 bytes instead of 3000000"),
        ("shifts_range_by", "the hub sent other bytes than those from 0 on"),
    ],
)
def test_what_arrives_wrong_leaves_nothing_that_looks_whole(hub, models, pulled, fault, message):
    setattr(hub.faults, fault, True)
    with pytest.raises(DownloadError, match=message):
        pulled()
    assert not (models / "hub" / "owner" / "repo" / NAME).exists()
    setattr(hub.faults, fault, False)
    assert pulled() == [DATA]


def test_a_range_that_the_hub_does_not_have_keeps_what_is_here(hub, models, pulled):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    here = partial_of(models).stat().st_size
    hub.faults.refusals = [(416, {"Content-Range": "bytes */5"})]
    with pytest.raises(DownloadError, match="the hub answered with status 416"):
        pulled()
    assert partial_of(models).stat().st_size == here
    assert pulled() == [DATA]


def test_a_file_that_changes_between_two_tries_is_not_put_together(hub, models, pulled):
    hub.faults.cuts, hub.faults.changes_etag = [1_000_000], True
    with pytest.raises(DownloadError, match="the hub sent another file than a moment ago"):
        pulled()
    assert not (models / "hub" / "owner" / "repo" / NAME).exists()


def test_a_file_gets_its_name_when_its_bytes_are_on_the_disk_and_then_its_folder_is(pulled, models, monkeypatch):
    order: list[str] = []

    def noted(name, function):
        def call(*arguments):
            order.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", noted("bytes", os.fsync))
    monkeypatch.setattr(download, "sha256_of", noted("digest", download.sha256_of))
    monkeypatch.setattr(Path, "replace", noted("name", Path.replace))
    monkeypatch.setattr(download, "sync_folder", noted("folder", lambda _folder: None))
    pulled()
    assert order == ["bytes", "digest", "name", "folder"]


def test_without_the_check_of_the_digest_damage_would_pass(hub, pulled, monkeypatch):
    monkeypatch.setattr(download, "sha256_of", lambda _: hub.repos["owner/repo"].files[NAME].told_sha256)
    hub.faults.damages = True
    assert pulled() == [bytes(len(DATA))]


def test_a_rest_that_was_damaged_is_dropped(models, pulled):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    with partial_of(models).open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(DownloadError, match="arrived wrong and was deleted"):
        pulled()
    assert pulled() == [DATA]


def test_a_rest_that_is_too_long_is_not_gone_on_with(models, pulled):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    with partial_of(models).open("ab") as file:
        file.write(DATA)
    assert pulled() == [DATA]


def test_a_server_without_ranges_costs_time_and_no_bytes_here(hub, models, pulled):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    hub.faults.ignores_range = True
    assert pulled() == [DATA]


def test_a_small_disk_is_noticed_before_the_first_byte(hub, pulled, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(
        StoreError, match=r"owner/repo needs 70,108,864 bytes more, .* has 1,000,000 left: free 69,108,864 bytes"
    ):
        pulled()
    assert ranges_of(hub) == []


def test_what_is_here_needs_no_space(models, pulled, monkeypatch):
    pulled()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert pulled() == [DATA]


def test_a_disk_that_fills_up_leaves_a_pull_to_go_on_with(pulled, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            DownloadError, match=r"No space left on device; `pinyon pull owner/repo:Q4_0` goes on from there"
        ):
            pulled()
    assert pulled() == [DATA]


def test_a_gated_file_says_what_to_do(hub, pulled, monkeypatch):
    hub.add("owner/repo", {NAME: DATA}, gated="manual")
    with pytest.raises(HubAccessError, match=r"owner/repo is gated: accept its licence on .*/owner/repo .*HF_TOKEN"):
        pulled()
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert pulled() == [DATA]
    assert {one.authorization for one in hub.of("cdn")} == {None}


def test_names_that_a_url_has_to_quote(hub, models, pulled):
    hub.add("owner/repo", {"ä ö/m#1%-Q4_0.gguf": DATA})
    assert pulled() == [DATA]
    assert (models / "hub" / "owner" / "repo" / "ä ö" / "m#1%-Q4_0.gguf").exists()


@pytest.mark.skipif(os.name == "nt", reason="no such limit there")
def test_a_write_that_fails_on_the_way_leaves_what_was_written(hub, models, pulled, tmp_path):
    with pull_elsewhere(hub, models, tmp_path, 1_500_000) as process:
        _, words = process.communicate(timeout=20)
    assert "DownloadError: owner/repo could not be written to" in words
    assert "File too large; `pinyon pull owner/repo:Q4_0` goes on from there" in words
    assert partial_of(models).stat().st_size == 1_500_000
    hub.asked.clear()
    assert pulled() == [DATA]
    assert ranges_of(hub) == [f"bytes=1500000-{len(DATA) - 1}"]


def test_a_file_without_a_digest_is_refused(hub, pulled):
    hub.add("owner/repo", {NAME: FakeFile(DATA, is_lfs=False)})
    with pytest.raises(DownloadError, match=r"the hub has no SHA-256 of m-Q4_0\.gguf, so it cannot be verified"):
        pulled()
    assert ranges_of(hub) == []


@pytest.mark.parametrize(
    "name",
    ["../../x-Q4_0.gguf", "..\\x-Q4_0.gguf", "C:\\x-Q4_0.gguf", "\\\\host\\x-Q4_0.gguf", "/x-Q4_0.gguf", "con/x.gguf"],
)
def test_a_hostile_name_leaves_nothing_anywhere(hub, tmp_path, pulled, name):
    hub.add("owner/repo", {name: DATA})
    before = files_in(tmp_path)
    with pytest.raises(ModelError, match="which is refused"):
        pulled()
    assert files_in(tmp_path) == before
    assert ranges_of(hub) == []


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need rights there")
@pytest.mark.parametrize("link", ["hub", "hub/owner", "hub/owner/repo", ".partial"])
def test_a_link_that_leads_out_is_not_followed(models, pulled, tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    (models / link).parent.mkdir(parents=True, exist_ok=True)
    (models / link).symlink_to(outside)
    with pytest.raises(DownloadError, match=r"leads out of .* through a symbolic link"):
        pulled()
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need rights there")
def test_links_in_the_place_of_files_are_replaced(models, pulled, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pulled(stopped_at(1_000_000))
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    partial = partial_of(models)
    partial.unlink()
    partial.symlink_to(victim)
    target = models / "hub" / "owner" / "repo" / NAME
    target.symlink_to(victim)
    assert pulled() == [DATA]
    assert (victim.read_bytes(), target.is_symlink()) == (b"mine", False)


PULL = """
import sys
if len(sys.argv) > 2:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
from pathlib import Path
from pinyon.models.hub.address import Address
from pinyon.models.hub.download import fetch
from pinyon.models.hub.repo import chosen, read_repo
repo = read_repo(Address("owner/repo"))
print(fetch(repo, chosen(repo, None), Path(sys.argv[1]), lambda _: None, lambda: print("waiting", flush=True)), flush=True)
"""


@contextlib.contextmanager
def pull_elsewhere(hub, models, tmp_path, *file_limit_bytes):
    """The same pull in another process, where no file may grow beyond the limit."""
    environment = {**os.environ, **hub.environment(tmp_path / "hf")}
    with subprocess.Popen(
        [sys.executable, "-c", PULL, str(models), *map(str, file_limit_bytes)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_of_two_pulls_one_writes_and_the_other_waits(hub, models, pulled, tmp_path):
    hub.faults.hold_after = 1_000_000
    with pull_elsewhere(hub, models, tmp_path) as first:
        wait_until(hub.held.is_set)
        with pull_elsewhere(hub, models, tmp_path) as second:
            assert second.stdout.readline() == "waiting\n"
            hub.release.set()
            assert first.wait(20) == second.wait(20) == 0
            assert first.stdout.read() == second.stdout.read()
    assert len(ranges_of(hub)) == 1
    assert pulled() == [DATA]


def test_who_waits_can_stop(hub, models, pulled, tmp_path):
    hub.faults.hold_after = 1_000_000
    told: list[str] = []
    with pull_elsewhere(hub, models, tmp_path):
        wait_until(hub.held.is_set)
        with pytest.raises(DownloadError, match="stopped"):
            pulled(waiting=lambda: told.append("waiting"), cancelled=lambda: bool(told))
    assert told == ["waiting"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_killed_pull_goes_on_or_starts_again_where_the_file_changed(hub, models, pulled, tmp_path, changed):
    hub.faults.hold_after = 1_200_000
    with pull_elsewhere(hub, models, tmp_path) as process:
        wait_until(hub.held.is_set)
        wait_until(lambda: any(path.stat().st_size > 1_000_000 for path in models.glob(".partial/*.part")))
        process.kill()
        process.wait()
    hub.release.set()
    hub.faults.hold_after = None
    if changed:
        hub.repos["owner/repo"].files[NAME] = FakeFile(OTHER)
    here = 0 if changed else partial_of(models).stat().st_size
    hub.asked.clear()
    assert pulled() == [OTHER if changed else DATA]
    assert ranges_of(hub) == [f"bytes={here}-{len(DATA) - 1}"]
    assert not list(models.glob(".partial/*.part"))
