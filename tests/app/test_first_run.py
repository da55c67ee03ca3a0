"""When it is the first run."""

import pytest

from pinyon.app import first_run
from pinyon.app.first_run import is_first_run
from pinyon.app.settings import Folders, Settings


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


def test_it_is_the_first_run_until_something_could_answer(folders, monkeypatch, tmp_path):
    assert is_first_run(folders, Settings())
    assert not is_first_run(folders, Settings(model="x"))
    monkeypatch.setattr(first_run, "read_server", lambda _: object())
    assert not is_first_run(folders, Settings())
    monkeypatch.undo()
    folders.models.mkdir(parents=True)
    (folders.models / "broken.json").write_text("{")
    assert not is_first_run(folders, Settings())
