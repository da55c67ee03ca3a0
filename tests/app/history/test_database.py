"""H3 and H4: files that are damaged, empty, another program's, newer or not to be written, and the journal of those that are written."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from histories import assert_sound, change, rows, told

from pinyon.app.history import database
from pinyon.app.history.history import History
from pinyon.app.history.schema import MIGRATIONS


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def kept(path):
    """A history with conversations, and its file."""
    with History(path) as history:
        for number in range(60):
            told(history, f"question {number}", "answer " * 200)
    return path


class Told(list):
    __call__ = list.append


def page_zeroed(path):
    data = bytearray(path.read_bytes())
    data[3 * 4096 : 4 * 4096] = bytes(4096)
    path.write_bytes(data)


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def overwritten(path):
    path.write_bytes(b"not a database " * 1000)


def another_programs(path):
    path.unlink()
    change(path, "CREATE TABLE conversations (a); INSERT INTO conversations VALUES ('theirs')")


def with_other_tables(path):
    change(path, "DROP TABLE messages")


def header_damaged(path):
    data = bytearray(path.read_bytes())
    data[16:24] = b"\xff" * 8
    path.write_bytes(data)


DAMAGES = [page_zeroed, cut_off, emptied, overwritten, another_programs, with_other_tables, header_damaged]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_file_that_cannot_be_a_history_is_set_aside_whole(kept, damage):
    for number in (1, 2):
        damage(kept)
        damaged, troubles = kept.read_bytes(), Told()
        with History(kept, troubles) as history:
            aside = kept.with_name(f"history.db.corrupt-{number}")
            assert aside.read_bytes() == damaged
            assert len(troubles) == 1
            assert str(aside) in troubles[0]
            assert history.conversations() == []
            assert history.why_not_saved == ""
            conversation, path = told(history)
        with History(kept, troubles) as history:
            assert history.tree(conversation.id).path() == path
        assert_sound(kept)
        assert len(troubles) == 1


def test_its_journal_goes_with_it(kept):
    overwritten(kept)
    Path(f"{kept}-journal").write_bytes(b"a journal")
    with History(kept) as history:
        told(history)
    assert Path(f"{kept}.corrupt-1-journal").read_bytes() == b"a journal"
    assert not Path(f"{kept}-journal").exists()


def test_a_journal_without_its_file_is_never_played_into_a_new_one(kept):
    """As where the file was moved away by hand after a kill."""
    with closing(sqlite3.connect(kept)) as writer:
        writer.create_function("searchable", 1, str)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("PRAGMA cache_spill = 1")
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("UPDATE conversations SET title = hex(randomblob(2000))")
        journal = Path(f"{kept}-journal").read_bytes()
    assert len(journal) > 4096
    kept.unlink()
    Path(f"{kept}-journal").write_bytes(journal)
    with History(kept) as history:
        conversation, path = told(history)
    with History(kept) as history:
        assert history.tree(conversation.id).path() == path
    assert_sound(kept)


def test_a_file_that_another_process_has_begun_meanwhile_is_not_set_aside(kept):
    seen = kept.stat()
    kept.rename(kept.with_name("history.db.corrupt-1"))
    with History(kept) as history:
        conversation, _ = told(history)
    database._set_aside(kept, seen)
    with History(kept) as history:
        assert history.conversations() == [conversation]


def test_who_begins_second_uses_the_first_ones_file(kept):
    before = rows(kept, "SELECT * FROM messages")
    database._begin(kept)
    assert rows(kept, "SELECT * FROM messages") == before
    assert [each.name for each in kept.parent.iterdir()] == ["history.db"]


def test_it_begins_without_hard_links(path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with History(path) as history:
        told(history)
        assert history.why_not_saved == ""
    assert_sound(path)
    assert [each.name for each in path.parent.iterdir()] == ["history.db"]


def test_a_newer_file_is_only_read(kept):
    change(kept, "PRAGMA user_version = 99; ALTER TABLE messages ADD COLUMN mood TEXT")
    before, troubles = kept.read_bytes(), Told()
    with History(kept, troubles) as history:
        assert len(history.conversations()) == 60
        assert history.search("question 7")
        assert "schema 99" in history.why_not_saved
        conversation, path = told(history)
        history.flush()
        assert history.tree(conversation.id).path() == path
        assert history.latest().id == conversation.id
        assert [each.conversation.id for each in history.search("because")] == [conversation.id]
    assert kept.read_bytes() == before
    assert troubles == [f"not saved: {kept} was written by a newer Pinyon (schema 99)"]


def test_a_newer_file_with_other_tables_is_left_alone(kept):
    change(kept, "PRAGMA user_version = 99; ALTER TABLE conversations RENAME COLUMN title TO name")
    before, troubles = kept.read_bytes(), Told()
    with History(kept, troubles) as history:
        assert history.conversations() == history.search("question") == []
        conversation, path = told(history)
        history.flush()
        assert history.tree(conversation.id).path() == path
    assert kept.read_bytes() == before
    assert "cannot be read" in troubles[0]


def test_a_newer_file_with_values_nobody_knows_yet_is_an_error_that_says_so(kept):
    from pinyon.app.history.errors import HistoryFileError

    (name,) = rows(kept, "SELECT id FROM conversations LIMIT 1")[0]
    change(kept, "PRAGMA user_version = 99; UPDATE messages SET role = 'tool'")
    with History(kept) as history, pytest.raises(HistoryFileError, match="this version"):
        history.tree(name)


def test_a_file_that_may_not_be_written_is_only_read(kept):
    kept.chmod(0o400)
    before, troubles = kept.read_bytes(), Told()
    with History(kept, troubles) as history:
        assert len(history.conversations()) == 60
        conversation, path = told(history)
        history.flush()
        assert history.tree(conversation.id).path() == path
        assert history.why_not_saved == f"{kept} may not be written"
    assert kept.read_bytes() == before
    assert troubles == [f"not saved: {kept} may not be written"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_left_alone(path, make):
    make(path)
    troubles = Told()
    with History(path, troubles) as history:
        conversation, messages = told(history)
        history.flush()
        assert history.tree(conversation.id).path() == messages
        assert troubles == [f"not saved: {path} is not a regular file"]
    assert [each.name for each in path.parent.iterdir()] == ["history.db"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    troubles = Told()
    with History(tmp_path / "file" / "history.db", troubles) as history:
        told(history)
        history.flush()
        assert "cannot be opened" in history.why_not_saved
    assert len(troubles) == 1


def test_an_older_file_is_brought_to_the_newest_schema(kept, monkeypatch):
    before = rows(kept, "SELECT id, text FROM messages")
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE messages ADD COLUMN mood TEXT",)))
    with History(kept) as history:
        assert len(history.conversations()) == 60
    assert rows(kept, "SELECT id, text FROM messages WHERE mood IS NULL") == before
    assert rows(kept, "PRAGMA user_version") == [(len(MIGRATIONS) + 1,)]


def test_a_migration_that_fails_changes_nothing(kept, monkeypatch):
    before = kept.read_bytes()
    bad = ("ALTER TABLE messages ADD COLUMN mood TEXT", "CREATE TABLE messages (a)")
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, bad))
    with pytest.raises(Exception, match="already exists"):
        database.open_database(kept)
    assert kept.read_bytes() == before


def test_an_older_file_that_may_not_be_written_is_left_alone(kept, monkeypatch):
    kept.chmod(0o400)
    before = kept.read_bytes()
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE messages ADD COLUMN mood TEXT",)))
    monkeypatch.setattr(database, "_PROBES", ("SELECT mood FROM messages LIMIT 0",))
    with History(kept) as history:
        assert history.conversations() == []
        assert history.why_not_saved == f"{kept} may not be written and cannot be read (no such column: mood)"
    assert kept.read_bytes() == before


def test_a_write_ahead_log_is_given_up(kept):
    """H3: with more than one process that writes, SQLite before 3.51.3 can damage such a file."""
    change(kept, "PRAGMA journal_mode = WAL")
    with History(kept) as history:
        told(history)
        history.flush()
        assert rows(kept, "PRAGMA journal_mode") == [("delete",)]
    assert_sound(kept)


def test_one_connection_writes(kept):
    with History(kept) as history:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            history._file._database.reader.execute("DELETE FROM messages")
        assert history._file._database.writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert history._file._database.writer.execute("PRAGMA secure_delete").fetchone() == (1,)


class Interrupted(sqlite3.Connection):
    """As where the file is so large that the check does not end in time."""

    def execute(self, statement, *parameters):
        if "quick_check" in statement:
            error = sqlite3.OperationalError("interrupted")
            error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
            raise error
        return super().execute(statement, *parameters)


def test_a_check_that_takes_too_long_is_no_damage(kept, monkeypatch):
    connect, troubles = sqlite3.connect, Told()
    monkeypatch.setattr(database.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Interrupted, **k))
    with History(kept, troubles) as history:
        assert len(history.conversations()) == 60
    assert troubles == []
