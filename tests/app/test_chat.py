"""`pinyon chat` as a process on a terminal: how it starts, how it ends, and what it leaves behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from command_line import PINYON, assert_refused, environment, pinyon
from terminal import terminal
from tiny_models import write_tiny_llama

from pinyon.app.history.history import History
from pinyon.app.history.records import State

PROMPT = b"ay something"  # the cursor stands on the S
QUIT = b"\x11"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def talking(home, smollm2):
    """A home with the starter model."""
    pinyon(home, "add", smollm2, "--name", "smollm2", check=True)
    return home


def last_path(home):
    with contextlib.closing(History(home / "data" / "history.db")) as history:
        latest = history.latest()
        return [] if latest is None else history.tree(latest.id).path()


def test_a_pipe_is_no_place_for_a_chat(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    assert_refused(pinyon(home, "chat"), 2, "needs a terminal", "--plain")


def test_there_must_be_a_conversation_to_go_on_with(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    assert_refused(pinyon(home, "chat", "--plain", "--continue"), 2, "no conversation")
    assert_refused(pinyon(home, "chat", "--plain", "--continue", "--private"), 2, "--private")


@pytest.mark.parametrize(("setting", "words"), [('theme = "mauve"', "mauve"), ('[keys]\nserach = "f7"', "serach")])
def test_settings_that_cannot_be_followed_end_the_chat_before_it_begins(home, tiny, setting, words):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text(setting)
    with terminal([*PINYON, "chat"], environment(home)) as shown:
        assert shown.ends() == 2
    assert words.encode() in shown.written
    assert b"\x1b[?1049h" not in shown.written


def test_a_model_s_file_is_enough_to_chat(home, tiny):
    done = pinyon(home, "chat", "--plain", tiny, stdin=b"/params max_tokens=4\nHello\n", check=True)
    assert "No model is here" not in done.stderr.decode()
    assert last_path(home)[-1].answered.model == "tiny"


def test_a_conversation_goes_on_with_its_own_model(home, tiny):
    other = write_tiny_llama(home.parent / "other.gguf", seed=1)
    for name, path in (("first", tiny), ("second", other)):
        pinyon(home, "add", path, "--name", name, check=True)
    hello = b"/params max_tokens=4\nHello\n"
    pinyon(home, "chat", "--plain", "first", stdin=hello, check=True)
    pinyon(home, "chat", "--plain", "--continue", stdin=hello, check=True)
    models = [message.answered.model for message in last_path(home) if message.answered is not None]
    assert models == ["first", "first"]


def test_a_damaged_history_that_was_set_aside_is_told(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    (home / "data" / "history.db").write_bytes(b"damaged")
    done = pinyon(home, "chat", "--plain", stdin=b"", check=True)
    assert "history.db.corrupt-1" in done.stderr.decode()


@pytest.mark.model
@pytest.mark.parametrize("how", ["strict", "surrogateescape"])
def test_a_line_from_a_pipe_that_is_not_utf_8_is_refused_in_any_locale(home, tiny, how):
    done = pinyon(
        home,
        "chat",
        "--plain",
        tiny,
        stdin=b"caf\xe9\n/params seed=7\n",
        PYTHONIOENCODING=f"utf-8:{how}",
        PYTHONUTF8="0",
    )
    assert done.returncode == 2
    assert done.stderr.decode() == "Error: the line is not UTF-8: byte 0xe9\n"
    assert "seed=7" in done.stdout.decode()


def test_a_plain_chat_in_a_pipe(talking):
    done = pinyon(talking, "chat", "--plain", stdin=b"/params temperature=0 max_tokens=8\nWhat is 1 + 1?\n", check=True)
    assert b"\x1b" not in done.stdout
    user, answer = last_path(talking)
    assert user.text == "What is 1 + 1?"
    assert f"Answer: {answer.text}".encode() in done.stdout


@pytest.mark.model
def test_leaving_in_the_middle_of_an_answer(talking):
    with terminal([*PINYON, "chat"], environment(talking)) as shown:
        shown.waits_for(PROMPT)
        shown.types(b"\x1bOQ")  # F2: the gauges tell when tokens come
        shown.waits_for(b"TTFT")
        shown.types(b"Write a long story, of ten chapters, about a river.\r")
        shown.waits_for(rb"tok/s \xe2\x96[\x81-\x88]")
        shown.types(QUIT)
        assert shown.ends() == 0
        assert shown.is_as_before
    assert shown.modes_left_on == []
    answer = last_path(talking)[-1]
    assert answer.state is State.CANCELLED
    assert answer.text


@pytest.mark.model
def test_a_terminal_that_goes_away_in_the_middle_of_an_answer_takes_the_chat_along(talking):
    with terminal([*PINYON, "chat"], environment(talking)) as shown:
        shown.waits_for(PROMPT)
        shown.types(b"\x1bOQ")
        shown.waits_for(b"TTFT")
        shown.types(b"Write a long story, of ten chapters, about a river.\r")
        shown.waits_for(rb"tok/s \xe2\x96[\x81-\x88]")
        shown.hangs_up()
        shown.process.wait(30)
    assert last_path(talking)[-1].text


STUCK = """
import asyncio, queue, sys
from pinyon.app.cli import chat

class App:
    def exit(self): pass

async def main():
    with chat._ending_by_signal(App()):
        print("ready", flush=True)
        full = queue.Queue(1)
        full.put(1)
        full.put(2)  # as one who writes to a thread that is no more

chat.HANG_UP_S = 0.2
asyncio.run(main())
"""


def test_a_chat_that_waits_for_a_terminal_that_is_gone_ends_all_the_same():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 128 + signal.SIGHUP


def test_leaving_while_the_model_loads(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    with terminal([*PINYON, "chat"], environment(home)) as shown:
        shown.waits_for(PROMPT)
        shown.types(QUIT)
        assert shown.ends() == 0
        assert shown.is_as_before
    assert shown.modes_left_on == []


def test_leaving_while_a_model_is_fetched(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    kept = {name: value for name, value in environment(home).items() if not name.startswith("PIP_")}
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes a request and never answers
        port = index.getsockname()[1]
        pip = {
            "PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple",
            "PIP_CONFIG_FILE": os.devnull,
            "no_proxy": "127.0.0.1",
        }
        with terminal([*PINYON, "chat"], {**kept, **pip}) as shown:
            shown.waits_for(PROMPT)
            shown.types(b"/model\r")
            shown.waits_for(b"fetch")
            shown.types(b"\x1b[B\r")
            index.settimeout(60)
            request, _ = index.accept()
            with request:
                shown.types(QUIT)
                assert shown.ends() == 0
                assert shown.is_as_before
                request.settimeout(60)
                while request.recv(65536):  # until pip is gone, too
                    pass
    assert shown.modes_left_on == []
    assert b"fetching" in shown.written
    assert [path.name for path in (home / "data" / "models" / ".partial").iterdir() if path.suffix == ".tmp"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(home, tiny, number):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    with terminal([*PINYON, "chat"], environment(home)) as shown:
        shown.waits_for(PROMPT)
        shown.process.send_signal(number)
        assert shown.ends() == 0
        assert shown.is_as_before
    assert shown.modes_left_on == []


def test_a_fault_leaves_the_terminal_as_it_was_and_shows_no_traceback(home, tiny):
    pinyon(home, "add", tiny, "--name", "tiny", check=True)
    planted = (
        "from pinyon.app.tui.chat_screen import ChatScreen\n"
        "def fail(self, event): raise ZeroDivisionError('planted')\n"
        "ChatScreen.on_prompt_recall = fail\n"
        "from pinyon.app.cli.main import main\n"
        "main()\n"
    )
    with terminal([sys.executable, "-c", planted, "chat"], environment(home)) as shown:
        shown.waits_for(PROMPT)
        shown.types(b"\x1b[A")
        assert shown.ends() == 1
        assert shown.is_as_before
    assert shown.modes_left_on == []
    assert b"a fault in Pinyon itself (ZeroDivisionError: planted)" in shown.written
    assert b"Traceback" not in shown.written
    assert "planted" in (home / "state" / "logs" / "faults.log").read_text()


@pytest.mark.model
def test_a_private_chat_leaves_nothing(talking):
    done = pinyon(talking, "chat", "--plain", "--private", stdin=b"/params max_tokens=8\nWhat is 1 + 1?\n", check=True)
    assert b"Answer: " in done.stdout
    assert not (talking / "data" / "history.db").exists()
    assert not list((talking / "cache").rglob("*.kv"))
