import re

import pytest

from pinyon.app.errors import SettingsError
from pinyon.app.tui.commands import ACTIONS, completions, help_text, keymap, slash_command


def test_every_action_has_one_id_and_a_way_to_reach_it():
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    slashes = [action.slash for action in ACTIONS if action.slash]
    assert len(set(slashes)) == len(slashes)
    assert all(action.key or action.slash for action in ACTIONS)


def test_a_key_of_the_settings_takes_the_place_of_the_tables():
    keys = keymap({"search": "f7"})
    assert (keys["search"], keys["new"]) == ("f7", "ctrl+n")
    assert "system" not in keys


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"serach": "f7"}, "no action 'serach'"),
        ({"search": " "}, "'search' has no key"),
        ({"search": "f7,s"}, "'s' for 'search' could not be typed any more"),
        ({"send": "x"}, "'x' for 'send' could not be typed any more"),
        ({"search": "ctrl+n"}, "'ctrl+n' is set for 'new' and for 'search'"),
        ({"search": "ctrl+c"}, "'ctrl+c' is set for 'interrupt' and for 'search'"),
        ({"search": "up"}, "'up' is set for 'search' and for 'up'"),
        ({"copy": "e"}, "'e' is set for 'edit' and for 'copy'"),
        ({"up": "escape"}, "'escape' is set for 'stop' and for 'up'"),
        ({"search": "f7", "cache": "f7"}, "'f7' is set for 'search' and for 'cache'"),
        ({"message.up": "k"}, "there is no action 'message.up'; the actions are send, newline, "),
        *(
            ({"search": key}, f"{key!r} for 'search' is no key. Keys are letters, signs by their names")
            for key in (
                "crtl+x",
                "Ctrl+X",
                "ctrl+X",
                "F4",
                "f99",
                "ctrl-x",
                "ctrl+",
                "+x",
                "shift+ctrl+x",
                "ctrl+?",
                "enterr",
            )
        ),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(keys, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        keymap(keys)


@pytest.mark.parametrize(
    "key",
    ["f24", "ctrl+x", "ctrl+shift+x", "alt+up", "ctrl+question_mark", "alt+slash", "pagedown", "ctrl+1", "f7,f8"],
)
def test_keys_that_terminals_send(key):
    assert keymap({"search": key})["search"] == key


def test_a_key_may_mean_one_thing_in_the_prompt_and_another_among_the_messages():
    assert keymap({})["send"] == keymap({})["unfold"] == "enter"
    assert keymap({"start": "g", "end": "G", "up": "k,up", "newline": "home"})["up"] == "k,up"


def test_two_actions_may_change_their_keys():
    keys = keymap({"search": "ctrl+n", "new": "ctrl+f"})
    assert (keys["search"], keys["new"]) == ("ctrl+n", "ctrl+f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/model smollm2", ("model", "smollm2")),
        ("  /HELP ", ("help", "")),
        ("/system You are\na bird", ("system", "You are\na bird")),
        ("/continue", ("go_on", "")),
    ],
)
def test_a_slash_command(text, expected):
    action, argument = slash_command(text)
    assert (action.id, argument) == expected


@pytest.mark.parametrize("text", ["hello", "/usr/bin/env what is this?", "/", "/tmp/", "1/2", ""])
def test_what_is_a_message(text):
    assert slash_command(text) is None


def test_a_command_that_does_not_exist():
    with pytest.raises(KeyError, match="modle"):
        slash_command("/modle x")


def test_completions_are_those_that_begin_so():
    assert [action.slash for action in completions("/co")] == [
        "conversations",
        "context",
        "continue",
        "copy",
        "command",
    ]
    assert completions("co") == []
    assert completions("/model x") == []


def test_the_help_names_every_action_with_the_keys_in_force():
    lines = help_text(keymap({"search": "f7"})).splitlines()
    assert len(lines) == len(ACTIONS)
    assert "Choose the message above (up)" in [line.strip() for line in lines]
    assert lines[5].split(maxsplit=2) == ["/search", "[WORDS]", "Search all conversations (f7)"]
