"""settings.toml, variables over it, and unknown names."""

import os
import sys

import pytest

from pinyon.app.errors import SettingsError
from pinyon.app.settings import Folders, Settings, load_settings


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


def write(folders, text):
    folders.settings_file.parent.mkdir(parents=True)
    folders.settings_file.write_text(text)


def test_without_a_file_everything_is_default_and_nothing_is_created(folders, tmp_path):
    assert load_settings(folders, {}) == Settings(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_variables_come_over_the_file(folders):
    write(folders, 'model = "smollm2"\ncontext = 1024\n')
    environment = {"PINYON_CONTEXT": "2048", "PINYON_THREADS": "3", "PINYON_HOME": "/x", "PATH": "/bin"}
    assert load_settings(folders, environment) == Settings("smollm2", 2048, 3)


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("modell = 'x'", {}, "modell.*the settings are model, context, threads"),
        ("context = '1024'", {}, "context"),
        ("context = 0", {}, "context"),
        ("context = ", {}, "cannot be read as settings"),
        ("", {"PINYON_CONTXT": "1"}, "contxt"),
        ("", {"PINYON_CONTEXT": "many"}, "context"),
        ("", {"PINYON_THREADS": "-1"}, "threads"),
        ("stall_ms = 5", {}, "stall_ms"),
        ("max_queued = 0", {}, "max_queued"),
        ("", {"PINYON_MAX_QUEUED_PER_CLIENT": "0"}, "max_queued_per_client"),
        ("long_request_share = 1.5", {}, "long_request_share"),
        ("engine_timeout_s = 1", {}, "engine_timeout_s"),
    ],
)
def test_what_is_wrong_is_named(folders, text, environment, message):
    write(folders, text)
    with pytest.raises(SettingsError, match=message):
        load_settings(folders, environment)


def test_a_file_with_a_byte_order_mark_is_read(folders):
    write(folders, "\ufeffcontext = 512\n")
    assert load_settings(folders, {}).context == 512


def test_what_is_no_regular_file_is_refused(folders):
    folders.config.mkdir(parents=True)
    os.mkfifo(folders.settings_file)
    with pytest.raises(SettingsError, match="not a regular file"):
        load_settings(folders, {})


def test_deeply_nested_settings_are_refused(folders):
    write(folders, "x = " + "[" * 5000)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(folders, {})


def test_a_file_that_is_not_text_is_refused(folders):
    write(folders, "")
    folders.settings_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(folders, {})


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_the_platform_s_folders(monkeypatch, tmp_path):
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = Folders.of_user({})
    assert folders.models == tmp_path / ".local/share/pinyon/models"
    assert folders.settings_file == tmp_path / ".config/pinyon/settings.toml"
    assert folders.logs == tmp_path / ".local/state/pinyon/logs"
    assert folders.server_file == tmp_path / "run/pinyon/server.json"


def test_a_home_holds_every_folder(folders, tmp_path):
    assert folders == Folders(*(tmp_path / name for name in ("config", "data", "state", "runtime", "cache")))
