import contextlib
import sys

import pytest

from pinyon.app.errors import UsageError
from pinyon.app.tui.editor import written_in_editor


class Application:
    """Notes what is asked of it, in order."""

    def __init__(self):
        self.asked = []

    @contextlib.contextmanager
    def _noted(self, name):
        self.asked.append(f"{name} begins")
        yield
        self.asked.append(f"{name} ends")

    def batch_update(self):
        return self._noted("batch")

    def suspend(self):
        return self._noted("suspension")

    def refresh(self, *, layout):
        self.asked.append("refresh")


@pytest.fixture
def use_editor(monkeypatch):
    def use(code):
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", f"{sys.executable} -c '{code}'")

    return use


async def test_the_text_comes_back_as_it_was_edited_while_nothing_is_painted(use_editor):
    use_editor('import sys; p = sys.argv[1]; t = open(p).read(); open(p, "w").write(t.upper() + "\\n")')
    application = Application()
    assert await written_in_editor(application, "a jäy\n2") == "A JÄY\n2"
    assert application.asked == ["batch begins", "suspension begins", "suspension ends", "batch ends", "refresh"]


async def test_an_editor_that_fails_changes_nothing(use_editor):
    use_editor("raise SystemExit(3)")
    with pytest.raises(UsageError, match="code 3"):
        await written_in_editor(Application(), "text")


async def test_an_editor_that_is_not_there(monkeypatch):
    monkeypatch.setenv("VISUAL", "no-such-editor")
    with pytest.raises(UsageError, match="no-such-editor"):
        await written_in_editor(Application(), "text")
