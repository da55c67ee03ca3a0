"""What is offered where nothing could answer."""

import pytest

from pinyon.app import first_run
from pinyon.app.first_run import is_first_run, offer
from pinyon.app.settings import Folders, Settings
from pinyon.models import catalog


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


def test_the_catalogue_is_offered_by_size_with_what_the_starter_can_do():
    lines = offer().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == [entry.name for entry in sorted(catalog.CATALOG, key=lambda entry: entry.size_bytes)]
    assert "  smollm2                  98 MB  small and quick: the one to start with" in lines
    assert catalog.find(first_run.STARTER) is not None
    text = " ".join(lines)
    for word in ("tiny", "makes things up", "`pinyon pull smollm2`", "`pinyon add FILE`"):
        assert word in text
    assert max(map(len, lines)) < 80
