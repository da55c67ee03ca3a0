"""H1: a process killed while it saves loses nothing that was saved, and leaves a file that is whole."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from histories import assert_sound, rows

from pinyon.app.history.history import History
from pinyon.app.history.records import State

WRITER = Path(__file__).parents[2] / "support" / "history_writer.py"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals")


def killed_writer(path, lines, delay_s):
    """Let a process write, kill it some time after it has said so many lines; return what it said, the later over the earlier."""
    with subprocess.Popen([sys.executable, WRITER, path], stdout=subprocess.PIPE) as writer:
        said = [writer.stdout.readline() for _ in range(lines)]
        time.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        said += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return {int(number): text for line in said for number, text in json.loads(line).items()}


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_killed_process_loses_nothing_that_was_saved(tmp_path, kills):
    path, choose = tmp_path / "history.db", random.Random(kills)
    for _ in range(kills):
        acknowledged = killed_writer(path, choose.randrange(1, 25), choose.random() * 0.05)
        with History(path) as history:
            messages = [
                message
                for each in history.conversations(limit=10_000)
                for message in history.tree(each.id).messages.values()
            ]
            history.start(title="", model="")  # whoever writes next tidies up
        assert_sound(path)
        there = {message.id: message for message in messages}
        for number, text in acknowledged.items():
            if isinstance(text, str):
                assert there[number].text.startswith(text)
            assert text is not False or number not in there
        assert sum(each.state is State.INTERRUPTED for each in messages if each.id in acknowledged) <= 1
        assert State.STREAMING not in {each.state for each in messages}
        assert rows(path, "SELECT * FROM messages WHERE state = 'streaming'") == []


KILLED = """
import os, signal, sys
from pathlib import Path
from pinyon.app.history import database

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before it has its name":
    database._link = killed
else:
    statements = [*database.MIGRATIONS[0]]
    class Killing(tuple):
        def __iter__(self):
            yield from statements[:4]
            killed()
    database.MIGRATIONS = (Killing(statements),)
database._begin(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["before it has its name", "before it is whole"])
@pytest.mark.parametrize("another_has_begun", [False, True])
def test_what_a_first_start_left_that_was_killed_is_gone_after_the_next(tmp_path, moment, another_has_begun):
    path, other = tmp_path / "history.db", tmp_path / "history.db.corrupt-1"
    other.touch()
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, path, moment], check=False).returncode == -signal.SIGKILL
    assert len([*tmp_path.glob(".history.db.*")]) >= 2
    if another_has_begun:
        with History(tmp_path / "another" / "history.db") as history:
            history.start(title="talk", model="")
        (tmp_path / "another" / "history.db").rename(path)
        (tmp_path / "another").rmdir()
    with History(path) as history:
        history.start(title="talk", model="")
    assert sorted(tmp_path.iterdir()) == [path, other]
    assert_sound(path)


BEGINNING = """
import sys
from pathlib import Path
from pinyon.app.history import database

database._link = lambda *_: input("whole\\n")
database._begin(Path(sys.argv[1]))
"""


def test_what_a_living_process_is_about_to_begin_is_left_to_it(tmp_path):
    path = tmp_path / "history.db"
    command = [sys.executable, "-c", BEGINNING, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (begun,) = tmp_path.glob(".history.db.*")
        with History(path) as history:
            history.start(title="ours", model="")
        assert begun.exists()
        process.communicate(b"\n")
    assert process.returncode == 0
    assert [*tmp_path.iterdir()] == [path]
