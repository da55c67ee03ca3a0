"""The first run as commands show it. Nothing is fetched but what the user names."""

import io
import sys

import click
import pytest
from command_line import assert_refused, pinyon

from pinyon.app import verdict
from pinyon.app.cli import pull
from pinyon.app.cli.first_model import offer_a_model
from pinyon.app.first_offer import offer
from pinyon.app.settings import Folders, Settings
from pinyon.app.verdict import Here
from pinyon.models.memory.fit import Budget

HERE = Here(Budget(16 << 30))
BEGIN = "No model is here yet"


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture(autouse=True)
def large_machine(monkeypatch):
    monkeypatch.setattr(verdict, "here_now", lambda _folders, _settings: HERE)


@pytest.fixture
def pulled(monkeypatch):
    """The names of the models that were fetched."""
    names = []
    monkeypatch.setattr(pull, "pull", lambda entry, _folder: names.append(entry.name))
    return names


@pytest.fixture
def typed(monkeypatch, folders):
    """Offer a model on a terminal where the user types something."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def offered(text):
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys, "stderr", Terminal())
        return offer_a_model(folders, Settings())

    return offered


def test_off_a_terminal_it_is_told_and_nothing_is_asked(folders, pulled, capsys):
    assert offer_a_model(folders, Settings())
    assert capsys.readouterr() == ("", offer(HERE) + "\n")
    assert pulled == []


def test_where_something_could_answer_nothing_is_told(folders, pulled, capsys):
    assert not offer_a_model(folders, Settings(model="x"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "names"),
    [("\n", []), ("smollm2\n", ["smollm2"]), ("gemma3:270m\n", ["gemma3:270m"]), ("nope\nsmollm2\n", ["smollm2"])],
)
def test_on_a_terminal_the_one_that_is_named_is_fetched(typed, pulled, text, names, capsys):
    assert typed(text)
    assert pulled == names
    assert offer(HERE) in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""


def test_the_end_of_input_is_no_answer(typed, pulled):
    with pytest.raises(click.Abort):
        typed("")
    assert pulled == []


@pytest.mark.parametrize("arguments", [["run", "hi"], ["batch", "in.jsonl", "out.jsonl"]])
def test_commands_offer_a_model_before_they_fail(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n')
    message = assert_refused(pinyon(tmp_path, *arguments), 3, "no model is here yet")
    assert message.startswith(BEGIN)


def test_pinyon_alone_offers_a_model_and_later_shows_its_commands(tmp_path, tiny):
    assert assert_refused(pinyon(tmp_path), 3, "`pinyon add FILE`").startswith(BEGIN)
    pinyon(tmp_path, "add", tiny, check=True)
    assert_refused(pinyon(tmp_path), 2, "Usage:", "Commands:", "run", "batch")
