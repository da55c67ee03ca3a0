import json
import time

import pytest
from command_line import assert_refused, pinyon, serving
from histories import rows, told

from pinyon.app import kv_files
from pinyon.app.ask import Ask, RawText
from pinyon.app.cli.logs import _named
from pinyon.app.history.history import History
from pinyon.app.history.records import Role
from pinyon.app.service import Service
from pinyon.app.settings import Folders, Settings
from pinyon.engine.events import Finished


@pytest.fixture
def folders(tmp_path):
    return Folders.of_user({"PINYON_HOME": str(tmp_path)})


@pytest.fixture
def kept(folders):
    """Two conversations, the later one first."""
    with History(folders.history_file) as history:
        first, _ = told(history, "Why is the sky blue?", "Rayleigh scattering.")
        second, path = told(history, "Name \x1b[2Jthree birds", "The jay.")
        history.add(second.id, path[0].id, Role.ASSISTANT, "Another jay.")
    return [second.id, first.id]


def logs(home, *arguments):
    return pinyon(home, "logs", *arguments, check=True).stdout.decode()


def test_without_a_history_there_is_nothing_and_nothing_is_made(tmp_path):
    assert logs(tmp_path) == logs(tmp_path, "search", "word") == ""
    assert logs(tmp_path, "list", "--json") == "[]\n"
    assert_refused(pinyon(tmp_path, "logs", "show"), 2, "no conversation was kept yet")
    assert not (tmp_path / "data").exists()


def test_list_shows_the_latest_first(tmp_path, kept):
    lines = logs(tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == kept
    assert "Name ␛[2Jthree birds" in lines[0]
    assert logs(tmp_path, "list") == logs(tmp_path)
    assert len(logs(tmp_path, "list", "-n", "1").splitlines()) == 1
    listed = json.loads(logs(tmp_path, "list", "--json"))
    assert [(each["id"], each["messages"], each["model"]) for each in listed] == [
        (kept[0], 3, "tiny"),
        (kept[1], 2, "tiny"),
    ]


def test_show_takes_the_path_used_last_or_an_id_cut_short(tmp_path, kept):
    shown = logs(tmp_path, "show")
    assert "Another jay." in shown
    assert "The jay." not in shown
    assert "Rayleigh scattering." in logs(tmp_path, "show", kept[1][:10])
    whole = json.loads(logs(tmp_path, "show", "--json"))
    assert whole["conversation"]["id"] == kept[0]
    assert [each["text"] for each in whole["messages"]][1:] == ["The jay.", "Another jay."]


def test_a_whole_id_is_looked_up_without_reading_all_conversations(folders, kept, monkeypatch):
    monkeypatch.setattr(History, "conversations", lambda *_, **__: pytest.fail("all are read"))
    with History(folders.history_file) as history:
        assert _named(history, kept[1]).id == kept[1]


def test_an_id_that_names_none_or_several_is_refused(tmp_path, kept):
    assert_refused(pinyon(tmp_path, "logs", "show", "zz"), 2, "no conversation zz")
    assert_refused(pinyon(tmp_path, "logs", "show", ""), 2, "2 conversations")


def test_search_finds_messages(tmp_path, kept):
    assert "Rayleigh scattering." in logs(tmp_path, "search", "ray")
    assert logs(tmp_path, "search", "ray").startswith(kept[1])
    assert logs(tmp_path, "search", "nothing") == ""
    found = json.loads(logs(tmp_path, "search", "--json", "--role", "assistant", "--model", "tiny", "jay"))
    assert [each["snippet"] for each in found] == ["The jay."]
    assert [found[0]["snippet"][start:end] for start, end in found[0]["matches"]] == ["jay"]


def test_search_takes_an_age(tmp_path, folders):
    with History(folders.history_file, clock=lambda: time.time() - 3 * 86400) as history:
        told(history, "The old jay", "Yes.")
    with History(folders.history_file) as history:
        told(history, "The young jay", "Yes.")
    for age, snippets in (("1d", ["The young jay"]), ("1w", ["The young jay", "The old jay"])):
        assert [
            each["snippet"] for each in json.loads(logs(tmp_path, "search", "jay", "--since", age, "--json"))
        ] == snippets
    assert logs(tmp_path, "search", "--role", "assistant", "--since", "1d").count("Yes.") == 1
    assert logs(tmp_path, "search", "since:1d", "jay") == logs(tmp_path, "search", "jay", "--since", "1d")
    assert logs(tmp_path, "search", "role:assistant", "since:1d").count("Yes.") == 1
    assert_refused(pinyon(tmp_path, "logs", "search", "since:1d", "--since", "1w"), 2, "since is given twice")
    assert_refused(pinyon(tmp_path, "logs", "search"), 2, "give words, or")
    assert_refused(pinyon(tmp_path, "logs", "search", "jay", "--since", "soon"), 2, "--since is 'soon'")


@pytest.mark.parametrize(("form", "words"), [("md", "# Why"), ("jsonl", '{"messages":['), ("html", "<!DOCTYPE html>")])
def test_export_prints_a_document(tmp_path, kept, form, words):
    assert logs(tmp_path, "export", kept[1], "--format", form).startswith(words)


def test_export_takes_several(tmp_path, kept):
    lines = logs(tmp_path, "export", *kept, "--format", "jsonl").splitlines()
    assert [json.loads(line)["messages"][-1]["content"] for line in lines] == ["Another jay.", "Rayleigh scattering."]
    assert_refused(pinyon(tmp_path, "logs", "export", *kept, "--format", "html"), 2, "one by one")


def test_a_title_is_changed(tmp_path, kept):
    logs(tmp_path, "rename", kept[1], "About", "the sky")
    assert "About the sky" in logs(tmp_path)
    assert_refused(pinyon(tmp_path, "logs", "rename", kept[1], "", " "), 2, "a title needs words")
    assert "About the sky" in logs(tmp_path)


def test_what_is_deleted_comes_back_and_what_is_purged_does_not(tmp_path, folders, kept):
    done = pinyon(tmp_path, "logs", "delete", kept[0], check=True)
    assert f"pinyon logs undelete {kept[0]}" in done.stderr.decode()
    assert [line.split()[0] for line in logs(tmp_path).splitlines()] == kept[1:]
    logs(tmp_path, "undelete", kept[0])
    assert [line.split()[0] for line in logs(tmp_path).splitlines()] == kept
    logs(tmp_path, "delete", "--now", *kept)
    assert logs(tmp_path) == ""
    assert rows(folders.history_file, "SELECT * FROM messages") == []
    assert_refused(pinyon(tmp_path, "logs", "undelete", kept[0]), 2, kept[0])


def test_one_that_is_named_twice_is_deleted_once(tmp_path, kept):
    done = pinyon(tmp_path, "logs", "delete", kept[0], kept[0][:-1], check=True)
    assert done.stderr.decode().count("is deleted") == 1


def test_what_is_deleted_already_can_be_purged(tmp_path, folders, kept):
    logs(tmp_path, "delete", *kept)
    done = pinyon(tmp_path, "logs", "delete", "--now", kept[1], check=True)
    assert "Why is the sky blue?" in done.stderr.decode()
    assert rows(folders.history_file, "SELECT id FROM conversations") == [(kept[0],)]
    assert_refused(pinyon(tmp_path, "logs", "delete", kept[0]), 2, f"no conversation {kept[0]}")


def test_only_a_whole_id_brings_a_conversation_back(tmp_path, kept):
    logs(tmp_path, "delete", kept[0])
    assert_refused(pinyon(tmp_path, "logs", "undelete", kept[0][:-1]), 2, f"no conversation {kept[0][:-1]}", "whole")


def test_a_damaged_file_is_set_aside_and_told(tmp_path, folders, kept):
    folders.history_file.write_bytes(b"damaged")
    done = pinyon(tmp_path, "logs", check=True)
    assert done.stdout == b""
    assert "history.db.corrupt-1" in done.stderr.decode()
    assert folders.history_file.with_name("history.db.corrupt-1").read_bytes() == b"damaged"


def test_what_cannot_be_changed_is_an_error(tmp_path, folders, kept):
    folders.history_file.chmod(0o400)
    assert len(logs(tmp_path).splitlines()) == 2
    done = pinyon(tmp_path, "logs", "rename", kept[0], "new")
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr.decode()


def test_titles_are_shown_as_they_are_but_for_what_drives_a_terminal(tmp_path, folders):
    with History(folders.history_file) as history:
        told(history, "\u0645\u06cc\u200c\u062e\u0648 👩\u200d🔬 \u202eevil\n\x9b2J")
    assert "\u0645\u06cc\u200c\u062e\u0648 👩\u200d🔬 \ufffdevil" in logs(tmp_path)
    assert not {"\u202e", "\x9b"} & set(logs(tmp_path) + logs(tmp_path, "search", "evil"))


@pytest.mark.model
async def test_what_was_computed_for_a_deleted_conversation_goes_with_it(tmp_path, folders, kept, tiny):
    async with Service(folders, Settings(threads=1, cache_disk_mib=100)) as service:
        model = await service.load(str(tiny))
        ask = Ask(RawText("This was said at length, and to nobody else. " * 4), max_tokens=4, conversation=kept[0])
        assert isinstance([event async for event in model.generate(ask)][-1], Finished)
    assert any(folders.kv.rglob("*.kv"))
    with kv_files.held(folders.kv):
        done = pinyon(tmp_path, "logs", "delete", kept[0], check=True)
        assert f"not all that was computed for {kept[0]} was deleted: another process" in done.stderr.decode()
    logs(tmp_path, "undelete", kept[0])
    logs(tmp_path, "delete", kept[1])
    assert any(folders.kv.rglob("*.kv"))
    logs(tmp_path, "delete", kept[0])
    assert not any(folders.kv.rglob("*.kv"))


@pytest.mark.model
def test_a_running_server_forgets_a_deleted_conversation_too(tmp_path, folders, tiny):
    question = "This was said at length, and to nobody else. " * 3
    with serving(tmp_path, "--model", str(tiny), PINYON_THREADS="1", PINYON_CACHE_DISK_MIB="100"):
        pinyon(tmp_path, "run", "--max-tokens", "4", question, check=True)
        (conversation,) = json.loads(logs(tmp_path, "list", "--json"))
        assert json.loads(pinyon(tmp_path, "run", "--dry-run", "--json", question).stdout)["cached_tokens"] > 100
        done = pinyon(tmp_path, "logs", "delete", conversation["id"], check=True)
        assert done.stderr.decode().count("\n") == 1
        assert json.loads(pinyon(tmp_path, "run", "--dry-run", "--json", question).stdout)["cached_tokens"] == 0
