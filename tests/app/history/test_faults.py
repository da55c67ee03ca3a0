"""H2: a disk that fails or is full and a file that another program holds cost nobody an answer, and nothing that was said."""

import contextlib
import sqlite3
import threading
from itertools import count

import pytest
from histories import ANSWERED, assert_sound, told

from pinyon.app.history import database, saving
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.history import History
from pinyon.app.history.records import Role, State


class Troubles(list):
    """What the user is told; `wait` for the next one."""

    def __init__(self):
        self.came = threading.Semaphore(0)

    def __call__(self, trouble):
        self.append(trouble)
        self.came.release()

    def wait(self):
        assert self.came.acquire(timeout=60)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def troubles():
    return Troubles()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nobody waits long for a lock, and what failed is tried again soon."""
    monkeypatch.setattr(database, "_WRITER_WAITS_S", 0.01)
    monkeypatch.setattr(database, "_READER_WAITS_S", 0.01)
    monkeypatch.setattr(saving, "_PAUSE_S", 0.001)
    monkeypatch.setattr(saving, "_LONGEST_PAUSE_S", 0.002)


class FailingConnection(sqlite3.Connection):
    """Every statement from the `first` to the `last` one that all such connections are given fails, as if the disk had."""

    given, first, last, code = 0, 0, 0, sqlite3.SQLITE_IOERR

    @classmethod
    def plan(cls, first, last, code):
        cls.given, cls.first, cls.last, cls.code = 0, first, last, code

    def execute(self, *arguments):
        self._fail_as_planned()
        return super().execute(*arguments)

    def executemany(self, *arguments):
        self._fail_as_planned()
        return super().executemany(*arguments)

    @classmethod
    def _fail_as_planned(cls):
        cls.given += 1
        if cls.first <= cls.given <= cls.last:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = cls.code
            raise error


@pytest.fixture
def failing(monkeypatch):
    """All connections to files made from now on."""

    class Failing(FailingConnection):
        pass

    connect = sqlite3.connect

    def connected(*arguments, uri=False, **options):
        return connect(*arguments, uri=uri, factory=Failing if uri else sqlite3.Connection, **options)

    monkeypatch.setattr(database.sqlite3, "connect", connected)
    return Failing


@pytest.mark.parametrize(
    ("code", "failures"),
    [
        (sqlite3.SQLITE_IOERR, 1),
        (sqlite3.SQLITE_BUSY, 3),
        pytest.param(sqlite3.SQLITE_FULL, 1, marks=pytest.mark.long),
        pytest.param(sqlite3.SQLITE_IOERR, 3, marks=pytest.mark.long),
    ],
)
def test_whichever_statement_fails_nothing_is_lost(tmp_path, failing, code, failures):
    """A statement of a read that fails is an error of that read; one of a write is nobody's."""
    for number in count(1):
        path, troubles = tmp_path / f"{number}" / "history.db", Troubles()
        failing.plan(number, number + failures - 1, code)
        history = History(path, troubles)
        name = history.start(title="", model="tiny").id
        asked = history.add(name, None, Role.USER, "asked").id
        history.flush()
        answer = history.add(name, asked, Role.ASSISTANT, "", state=State.STREAMING).id
        history.stream(answer, "answ")
        history.flush()
        history.stream(answer, "ered")
        history.finish(answer, State.COMPLETE, ANSWERED)
        assert [each.text for each in history.tree(name).path()] == ["asked", "answered"]
        while history.why_not_saved or len(troubles) % 2:
            history.flush()
        was_reached = failing.given >= failing.first
        failing.plan(0, 0, code)
        history.close()
        assert [each[:5] for each in troubles] in ([], ["not s", "saved"])
        with History(path) as history:
            assert [each.text for each in history.tree(name).path()] == ["asked", "answered"]
            assert [each.message for each in history.search("answered")] == [answer]
        assert_sound(path)
        if not was_reached:
            return


def allow_pages(history, pages):
    """Let the file have so many pages from the next save on. The thread that saves says so itself: the connection is its own."""
    save = history._saver._save

    def first_say_so():
        history._saver._save = save
        history._file._database.writer.execute(f"PRAGMA max_page_count = {pages}")
        save()

    history._saver._save = first_say_so


def test_a_full_disk_is_told_once_and_everything_is_saved_later(path, troubles):
    with History(path, troubles) as history:
        before, _ = told(history)
        history.flush()
        allow_pages(history, 1)  # SQLite takes the pages that are there
        conversation, messages = told(history, "a question", "words " * 10_000)
        for _ in range(5):
            history.flush()
        assert "the disk is full" in history.why_not_saved
        assert len(troubles) == 1
        assert history.tree(conversation.id).path() == messages
        assert [each.id for each in history.conversations()] == [conversation.id, before.id]
        assert len(history.search("words")) == 1
        allow_pages(history, 1_000_000)
        for _ in range(2):  # the first may wait for a save that was under way
            history.flush()
        assert history.why_not_saved == ""
        assert troubles[1:] == ["saved again"]
    with History(path) as history:
        assert history.tree(conversation.id).path() == messages
    assert_sound(path)


def test_a_disk_that_stays_full_loses_what_is_new_and_nothing_else(path, troubles):
    with History(path, troubles) as history:
        before, messages = told(history)
        history.flush()
        allow_pages(history, 1)
        told(history, "a question", "words " * 10_000)
    assert len(troubles) == 1
    with History(path) as history:
        assert [each.id for each in history.conversations()] == [before.id]
        assert history.tree(before.id).path() == messages
    assert_sound(path)


@contextlib.contextmanager
def no_file_larger_than(size_bytes):
    """The system refuses to write past that, in the database and in its journal."""
    resource = pytest.importorskip("resource")
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_wherever_the_system_refuses_to_write_nothing_is_lost(path, troubles):
    with History(path, troubles) as history:
        kept = [told(history)]
        history.flush()
        size_bytes = path.stat().st_size
        for limit_bytes in (0, 512, 600, 4096, 10_000, 30_000, *range(size_bytes - 8192, size_bytes + 40_960, 4096)):
            with no_file_larger_than(limit_bytes):
                kept.append(told(history, "more", "words " * 3000))
                history.flush()
            history.flush()
            assert history.why_not_saved == ""
            assert_sound(path)
            history.purge(kept.pop()[0].id)
        kept.append(told(history))
    assert {trouble.split(" ")[0] for trouble in troubles} == {"not", "saved"}
    with History(path) as history:
        assert [history.tree(conversation.id).path() for conversation, _ in kept] == [messages for _, messages in kept]
    assert_sound(path)


@pytest.mark.parametrize("lock", ["EXCLUSIVE", "IMMEDIATE", "SHARED"])
def test_a_chat_goes_on_while_another_program_holds_the_file(path, troubles, lock):
    with History(path, troubles) as history:
        conversation, (_, given) = told(history)
        history.flush()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN" if lock == "SHARED" else f"BEGIN {lock}")
        other.execute("SELECT * FROM conversations").fetchall()
        more = history.add(conversation.id, given.id, Role.USER, "More?")
        troubles.wait()
        answer = history.add(conversation.id, more.id, Role.ASSISTANT, "", state=State.STREAMING)
        history.stream(answer.id, "No more.")
        history.finish(answer.id, State.COMPLETE, ANSWERED)
        for _ in range(3):
            history.flush()
            path_now = [each.text for each in history.tree(conversation.id).path()]
            assert path_now == ["Why?", "Because.", "More?", "No more."]
            assert history.conversation(conversation.id).messages == 4
            assert [each.id for each in history.conversations()] == [conversation.id]
        assert troubles == [f"not saved: another program holds {path}: close it, or try again"]
        if lock == "EXCLUSIVE":
            with pytest.raises(HistoryFileError, match="another program holds"):
                history.search("more")
        other.close()
        troubles.wait()
        assert (troubles[1:], history.why_not_saved) == (["saved again"], "")
    with History(path) as history:
        assert [each.text for each in history.tree(conversation.id).path()] == path_now
    assert_sound(path)


def test_a_file_that_is_held_at_the_start_is_used_once_it_is_free(path, troubles):
    with History(path) as history:
        before, messages = told(history)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        history = History(path, troubles)
        assert "another program holds" in history.why_not_saved
        assert history.conversations() == []
        conversation, _ = told(history)
        other.rollback()
        troubles.wait()
        troubles.wait()
        assert history.tree(before.id).path() == messages
        history.close()
    other.close()
    with History(path) as history:
        assert {each.id for each in history.conversations()} == {before.id, conversation.id}


def test_damage_that_shows_later_costs_no_answer(path, troubles):
    with History(path, troubles) as history:
        told(history)
        history.flush()
        path.write_bytes(b"x" * path.stat().st_size)
        conversation, messages = told(history)
        history.flush()
        assert "is damaged" in history.why_not_saved
        assert history.tree(conversation.id).path() == messages


def test_what_changes_after_a_write_that_worked_and_ended_in_an_error_is_saved(path, troubles, monkeypatch):
    with History(path, troubles) as history:
        purged, _ = told(history)
        history.flush()
        with monkeypatch.context() as patched:
            patched.setattr("pinyon.app.history.rows.rewrite_index", lambda *_, **__: 1 / 0)
            history.purge(purged.id)
            conversation, _ = told(history)
            history.flush()
        history.rename(conversation.id, "renamed")
    with History(path) as history:
        assert [each.title for each in history.conversations()] == ["renamed"]


def test_an_error_that_nobody_expects_ends_no_thread(path, troubles, monkeypatch):
    with History(path, troubles) as history:
        with monkeypatch.context() as patched:
            patched.setattr("pinyon.app.history.rows._columns", lambda _: 1 / 0)
            told(history)
            history.flush()
            assert history.why_not_saved == "division by zero"
        history.flush()
        assert (troubles, history.why_not_saved) == (["not saved: division by zero", "saved again"], "")


def test_closing_waits_for_nobody(path, troubles):
    history = History(path, troubles)
    conversation, _ = told(history)
    history.flush()
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        history.rename(conversation.id, "new")
        history.close()
        other.rollback()
    other.close()
    assert len(troubles) == 1


def test_a_listener_that_fails_ends_no_saving(path):
    heard = []

    def listen(trouble):
        heard.append(trouble)
        raise RuntimeError(trouble)

    with History(path, listen) as history:
        told(history)
        history.flush()
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            conversation, _ = told(history)
            history.flush()
            other.rollback()
        other.close()
        history.flush()
        assert [each.split()[0] for each in heard] == ["not", "saved"]
    with History(path) as history:
        assert conversation in history.conversations()
