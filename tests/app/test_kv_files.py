"""The folder without an engine: it is left as an engine would leave it, and one process at a time uses it."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest
from kv_world import ABC, World, check_forgotten, talk_at_random

from pinyon.app.errors import FolderInUseError
from pinyon.app.kv_files import clear, forget, held, kept
from pinyon.engine.cache_notes import read_notes
from pinyon.engine.events import Removed
from pinyon.engine.file_system import FileSystem

ROOT = "0" * 32


@pytest.fixture
def world(tmp_path):
    folder = tmp_path / "kv" / ROOT
    folder.mkdir(parents=True)
    return World(folder)


def left_in(folder):
    """The names of a folder's files, and what its notes say."""
    with contextlib.closing(sqlite3.connect(folder / "notes.db")) as database:
        rows = [
            database.execute(f"SELECT * FROM {table}").fetchall() for table in ("conversations", "answers", "notes")
        ]
    return {path.name for path in folder.iterdir()}, rows


@pytest.mark.parametrize("seed", range(3))
def test_a_conversation_is_forgotten_as_in_an_engine(world, seed):
    world, history = talk_at_random(world, seed)
    world.engine.close()
    copy = world.folder.parent.parent / "copy" / ROOT
    forgotten = set()
    for name in ("two", "one", "three"):
        shutil.copytree(world.folder, copy)
        removed = forget(copy.parent, name)
        world = World(world.folder)
        assert world.forget(name) == removed
        forgotten.add(name)
        check_forgotten(world, history, forgotten)
        world.engine.close()
        assert left_in(copy) == left_in(world.folder)
        shutil.rmtree(copy)


def test_all_models_forget_it(tmp_path):
    for root in ("a" * 32, "b" * 32):
        (tmp_path / root).mkdir()
        world = World(tmp_path / root)
        world.run("r", ABC[:150], "talk")
        world.engine.close()
    assert [each.blocks for each in kept(tmp_path)] == [3, 3]
    assert forget(tmp_path, "talk").blocks == 6
    assert [each.blocks for each in kept(tmp_path)] == [0, 0]


def test_what_a_kill_left_unfinished_goes_too(world):
    world.run("a", ABC[:150], "talk")
    world.engine.close()
    first = min(world.folder.glob("*.kv"))
    first.rename(first.with_suffix(".new"))
    second = max(world.folder.glob("*.kv"))
    second.write_bytes(second.read_bytes()[:50])
    assert forget(world.folder.parent, "talk").blocks == 3
    assert {path.name for path in world.folder.iterdir()} == {"notes.db"}


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_was_interrupted_can_be_repeated(world, monkeypatch, after):
    """Rows go last; what they tell of has gone before, or not."""
    world.run("a", ABC[:150], "talk")
    world.engine.close()
    unlinked = []

    def unlink(path, **_missing_ok):
        if len(unlinked) == after:
            raise OSError(5, "Input/output error")
        unlinked.append(path)
        os.unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", unlink)
        with pytest.raises(OSError, match="Input/output"):
            forget(world.folder.parent, "talk")
    assert len(world.files) == 3 - after
    assert forget(world.folder.parent, "talk").blocks == 3 - after
    assert left_in(world.folder) == ({"notes.db"}, [[], [], []])


def test_a_kill_between_files_and_rows_can_be_repeated_by_an_engine(world, monkeypatch):
    world.run("a", ABC[:150], "talk")
    world.engine.close()
    with monkeypatch.context() as patched:
        patched.setattr("pinyon.app.kv_files.forget_conversation", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            forget(world.folder.parent, "talk")
    world = World(world.folder)
    assert world.rows()
    assert world.forget("talk") == Removed()
    assert world.rows() == world.rows("answers") == world.rows("notes") == []
    world.engine.close()


def test_what_is_older_goes_but_for_what_something_newer_goes_on_from(world):
    world.run("a", ABC[:200])
    world.run("b", f"{ABC[:128]}b")
    world.engine.close()
    long_ago = time.time() - 1000
    newest = World(world.folder)
    (own,) = (block for block in newest.made.kv._store._blocks() if bytes(block.tokens).startswith(b"b"))
    newest.engine.close()
    for path in world.folder.glob("*.kv"):
        if path.stem != own.key.hex():
            os.utime(path, (long_ago, long_ago))
    assert clear(world.folder.parent, None, time.time() - 500).blocks == 2
    world = World(world.folder)
    assert {len(text) for text in world.blocks} == {64, 128, 136}
    assert [note.request_id for note in read_notes(world.folder)] == ["a", "b"]
    world.engine.close()
    assert clear(world.folder.parent, None, time.time() + 1).blocks == 3
    assert left_in(world.folder) == ({"notes.db"}, [[], [], []])


def test_a_file_of_another_schema_is_begun_anew(tmp_path):
    database = sqlite3.connect(tmp_path / "notes.db")
    database.executescript(
        "CREATE TABLE answers (number INTEGER PRIMARY KEY, key BLOB, tokens BLOB); PRAGMA user_version = 1"
    )
    database.close()
    world = World(tmp_path)
    world.run("a", "x", "talk")
    assert len(world.rows("answers")) == 1
    world.engine.close()


def test_one_process_at_a_time_uses_the_folder(tmp_path):
    script = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(FolderInUseError, match="another process uses"), held(tmp_path):
            pytest.fail("it is held twice")
        other.stdin.close()
        other.wait(10)
    with held(tmp_path), pytest.raises(FolderInUseError), held(tmp_path):
        pytest.fail("it is held twice")


def test_the_lock_is_its_owner_s(tmp_path):
    with held(tmp_path):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_the_time_of_a_file_is_that_of_its_block(world):
    world.run("a", ABC[:70])
    world.engine.close()
    for path in world.folder.glob("*.kv"):
        os.utime(path, (500, 500))
        assert FileSystem().head(path, 1)[2] == 500
    world = World(world.folder)
    assert {block.made_at for block in world.made.kv._store._blocks()} == {500}
    world.engine.close()
