"""`pinyon rm`: what goes, what stays, and who still has it."""

import os
from types import SimpleNamespace

import msgspec
import pytest
from command_line import assert_refused, pinyon, serving
from other_stores import ollama_model

from pinyon.app.errors import UsageError
from pinyon.app.model_users import require_unloaded
from pinyon.app.settings import Folders
from pinyon.app.wire import Memory, ModelStatus, Status
from pinyon.models.catalog import find
from pinyon.models.model_record import Source
from pinyon.models.store import Store


def test_an_added_file_stays_and_it_is_said_for_whom(tmp_path, tiny):
    blob = ollama_model(tmp_path / "ollama", "mine", tiny.read_bytes())
    here = {"OLLAMA_MODELS": str(tmp_path / "ollama"), "HOME": str(tmp_path)}
    pinyon(tmp_path / "home", "add", "--from", "ollama", check=True, **here)
    pinyon(tmp_path / "home", "add", tiny, check=True, **here)
    assert (
        pinyon(tmp_path / "home", "rm", "tiny", **here).stderr
        == b"tiny is removed: its file was not Pinyon's and stays\n"
    )
    assert (
        pinyon(tmp_path / "home", "rm", "mine", **here).stderr
        == b"mine is removed: its file stays, for Ollama's store\n"
    )
    assert blob.exists()
    assert_refused(pinyon(tmp_path / "home", "rm", "mine", **here), 3, "no model named mine")


def test_a_fetched_file_is_deleted_unless_another_model_has_it(tmp_path, tiny):
    store = Store(tmp_path / "data" / "models")
    entry = find("smollm2")
    file = store.models_dir / entry.file_name

    def fetched():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tiny.read_bytes())
        assert store.adopt(entry, file).source is Source.CATALOGUE

    fetched()
    done = pinyon(tmp_path, "rm", "smollm2")
    assert done.stderr.decode() == f"smollm2 is removed: deleted {file}\n"
    assert not file.exists()
    file.write_bytes(tiny.read_bytes())
    pinyon(tmp_path, "add", file, "--name", "mine", check=True)
    fetched()
    assert pinyon(tmp_path, "rm", "smollm2").stderr == b"smollm2 is removed: its file stays, for mine\n"
    assert file.exists()


def test_a_broken_record_can_be_removed(tmp_path):
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    (folder / "cut.json").write_text("{")
    assert pinyon(tmp_path, "rm", "cut").returncode == 0
    assert [*folder.iterdir()] == []


@pytest.mark.model
def test_what_a_server_has_loaded_is_refused_and_everything_else_is_not(tmp_path, tiny):
    for name in ("tiny", "other"):
        (tmp_path / f"{name}.gguf").write_bytes(tiny.read_bytes())
        pinyon(tmp_path, "add", tmp_path / f"{name}.gguf", check=True)
    with serving(tmp_path, "--model", "tiny", "--preload", PINYON_THREADS="1"):
        message = assert_refused(pinyon(tmp_path, "rm", "tiny"), 2, "tiny is loaded in the server with pid")
        assert "`pinyon stop` first, then `pinyon rm tiny`" in message
        assert pinyon(tmp_path, "rm", "other").returncode == 0
        assert pinyon(tmp_path, "run", "tiny", "--max-tokens", "1", "Hello").returncode == 0
    assert pinyon(tmp_path, "rm", "tiny").returncode == 0


@pytest.mark.parametrize(("progress", "state"), [(None, "loaded"), (0.0, "being loaded"), (0.7, "being loaded")])
async def test_a_model_on_its_way_into_memory_is_used_too(tmp_path, tiny, monkeypatch, progress, state):
    folders = Folders.of_user({"PINYON_HOME": str(tmp_path)})
    record = Store(folders.models).add(tiny, "tiny")
    memory = Memory("f16", 0, 0, 0, 0, 0, 0, {}, ())
    model = ModelStatus("tiny", os.fsencode(tiny), "loading", 256, 1, 0, 0, memory, progress=progress)
    status = Status(1, "", 0.0, "loading", (model,), 0, 0, is_draining=False, why_no_disk="")

    async def told():
        return status

    async def find_server(_folders):
        return SimpleNamespace(pid=7, url="http://x", status=told)

    monkeypatch.setattr("pinyon.app.model_users.read_server", lambda _folders: object())
    monkeypatch.setattr("pinyon.app.remote.find_server", find_server)
    with pytest.raises(UsageError, match=f"^tiny is {state} in the server with pid 7 at http://x: `pinyon stop` first"):
        await require_unloaded(folders, record)
    status = msgspec.structs.replace(status, models=(msgspec.structs.replace(model, name="other"),))
    await require_unloaded(folders, record)
