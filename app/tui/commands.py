"""Everything that can be done in the chat: one table for keys, palette, mouse and slash commands. Knows no widget."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from pinyon.app.errors import SettingsError


class Where(StrEnum):
    """Where an action's keys act."""

    APP = "app"
    """Everywhere, also in front of the chat."""
    CHAT = "chat"
    PROMPT = "prompt"
    """Where one writes."""
    MESSAGES = "messages"
    """Among the messages."""


class Action(NamedTuple):
    """One thing to do. What has a slash command is a method of Actions with this id, which takes the argument as text.

    `key` is as Textual spells keys, several with commas between; empty where there is none. `argument` is how the help calls
    what may follow the slash command. `label` is for the footer; without one the action is not shown there.
    """

    id: str
    title: str
    key: str = ""
    slash: str = ""
    argument: str = ""
    label: str = ""
    where: Where = Where.CHAT


ACTIONS: Final = (
    Action("send", "Send the message", "enter", where=Where.PROMPT),
    Action("newline", "Begin a new line in the message", "shift+enter,alt+enter,ctrl+j", where=Where.PROMPT),
    Action("interrupt", "Copy what is selected; else stop the answer, twice: leave", "ctrl+c", where=Where.APP),
    Action("new", "Begin a new conversation", "ctrl+n", "new", label="New"),
    Action("sidebar", "Show or hide the conversations", "ctrl+b", "conversations", label="Conversations"),
    Action("search", "Search all conversations", "ctrl+f", "search", "[WORDS]", label="Search"),
    Action("model", "Choose the model that answers", "ctrl+o", "model", "[NAME]", label="Model"),
    Action("stop", "Stop the answer; what is there is kept", "escape", "stop", label="Stop"),
    Action("system", "Set what the model is told before everything else", slash="system", argument="[TEXT]"),
    Action("params", "Show or set how tokens are drawn", slash="params", argument="[NAME=VALUE ...]"),
    Action("preset", "Put a template's text into the prompt", slash="preset", argument="[NAME ...]"),
    Action("attach", "Attach a file", slash="attach", argument="[PATH]"),
    Action("detach", "Remove the last attachment; the key from an empty prompt", "backspace", "detach"),
    Action("editor", "Write the message in $EDITOR", "ctrl+g", "editor"),
    Action("cache", "What of the last prompt was reused, and why not more", slash="cache"),
    Action("context", "How much of the context is used", slash="context"),
    Action("gauges", "Show or hide the gauges", "f2", "gauges"),
    Action("reasoning", "Show or hide what the model thought", "ctrl+r", "reasoning"),
    Action("messages", "Go to the messages; up and down choose one", "ctrl+t", "messages"),
    Action("up", "Choose the message above", "up", where=Where.MESSAGES),
    Action("down", "Choose the message below", "down", where=Where.MESSAGES),
    Action("start", "Go to the first message", "home", where=Where.MESSAGES),
    Action("end", "Go to the end, and follow it", "end", where=Where.MESSAGES),
    Action("unfold", "Show or hide what the chosen message was thought out with", "enter", where=Where.MESSAGES),
    Action("edit", "Edit a message of yours; the old one stays as a branch", "e", "edit", where=Where.MESSAGES),
    Action("regenerate", "Answer again, as another branch", "r", "regenerate", where=Where.MESSAGES),
    Action("go_on", "Go on with an answer that was cut off", "c", "continue", where=Where.MESSAGES),
    Action("previous", "Show the branch before this one", "left", "previous", where=Where.MESSAGES),
    Action("next", "Show the branch after this one", "right", "next", where=Where.MESSAGES),
    Action("copy", "Copy a message", "y", "copy", where=Where.MESSAGES),
    Action("delete", "Leave a message out, and what follows it", "delete", "delete", where=Where.MESSAGES),
    Action(
        "attachments",
        "Show or hide what is attached to a message",
        "a",
        "attachments",
        where=Where.MESSAGES,
    ),
    Action("undo", "Take the last deletion back", "u", "undo"),
    Action("rename", "Give the conversation another title", slash="rename", argument="[TITLE]"),
    Action("delete_conversation", "Delete the conversation, and what is cached of it", slash="delete-conversation"),
    Action("export", "Write the conversation to a .md, .jsonl or .html file", "ctrl+s", "export", "[FILE]"),
    Action("copy_curl", "Copy the last question as a curl command", slash="curl"),
    Action("copy_command", "Copy the last question as a pinyon command", slash="command"),
    Action("theme", "Change between dark and light", "f3", "theme"),
    Action("palette", "Find an action by its name", "ctrl+p", label="All"),
    Action("help", "Keys and commands", "f1", "help", label="Help"),
    Action("quit", "Leave the chat", "ctrl+q", "quit"),
)
MAY_BE_LETTERS: Final = {action.id for action in ACTIONS if action.where is Where.MESSAGES} | {"undo", "stop", "detach"}
"""Whose keys act only where nothing is typed."""
_MODIFIERS: Final = frozenset(("alt", "ctrl", "hyper", "meta", "shift", "super"))
_BY_ID: Final = {action.id: action for action in ACTIONS}
_BY_SLASH: Final = {action.slash: action for action in ACTIONS if action.slash}


def keymap(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the key of every action that has one, the user's over the table's.

    Raises:
        SettingsError: an unknown action, none of its keys, what is no key, one key for two actions in the same place, or a
            letter for one that acts in the prompt.
    """
    if unknown := keys.keys() - _BY_ID.keys():
        raise SettingsError(f"[keys]: there is no action {min(unknown)!r}; the actions are {', '.join(_BY_ID)}")
    for id, names in keys.items():  # noqa: A001
        if not (its_keys := _split(names)):
            raise SettingsError(f"[keys]: {id!r} has no key; leave the line out for the usual one")
        for key in its_keys:
            _require_key(key, id)
    owners: dict[str, list[Action]] = {}
    for action in ACTIONS:
        for key in _split(keys.get(action.id, action.key)):
            for other in owners.setdefault(key, []):
                if other.where is action.where or {other.where, action.where} & {Where.APP, Where.CHAT}:
                    raise SettingsError(
                        f"[keys]: {key!r} is set for {other.id!r} and for {action.id!r}; give one of them another key"
                    )
            owners[key].append(action)
    return {action.id: key for action in ACTIONS if (key := keys.get(action.id, action.key))}


def _split(names: str) -> list[str]:
    return list(dict.fromkeys(filter(None, (name.strip() for name in names.split(",")))))


def _require_key(key: str, action: str) -> None:
    """Raises SettingsError where no terminal sends a key of this name, or where it could not be typed any more."""
    from textual.keys import REPLACED_KEYS, Keys, key_to_character  # noqa: PLC0415  --plain does without Textual

    if len(key) == 1:
        if action not in MAY_BE_LETTERS:
            raise SettingsError(
                f"[keys]: {key!r} for {action!r} could not be typed any more; take f4, or ctrl and a letter"
            )
        return
    *modifiers, name = key.split("+")
    named = sorted(each.value for each in Keys if each.value.isalnum())
    is_sign = name in REPLACED_KEYS or key_to_character(name) is not None
    is_key = name in named or (is_sign and name.islower()) or name.isdecimal()
    if not is_key or modifiers != sorted(set(modifiers) & _MODIFIERS):
        raise SettingsError(
            f"[keys]: {key!r} for {action!r} is no key. Keys are letters, signs by their names (question_mark), "
            f"{', '.join(named)}; before them, with + and in this order, {', '.join(sorted(_MODIFIERS))}"
        )


def slash_command(text: str) -> tuple[Action, str] | None:
    """Return the action of a prompt that is a slash command, and its argument; None for a prompt that is a message.

    A path (`/usr/bin/env`) is no command. Raises KeyError with the name of a command that does not exist.
    """
    name, argument = (*text.split(maxsplit=1), "", "")[:2]
    if not name.startswith("/") or "/" in name[1:] or name == "/":
        return None
    return _BY_SLASH[name[1:].lower()], argument.strip()


def completions(text: str) -> list[Action]:
    """Return the slash commands that a prompt may become, in the order of the table."""
    if not text.startswith("/") or any(map(str.isspace, text)):
        return []
    return [action for action in ACTIONS if action.slash.startswith(text[1:].lower()) and action.slash]


def key_of(action: str) -> str:
    """Return the table's key of an action."""
    return _BY_ID[action].key


def help_text(keys: Mapping[str, str], actions: Iterable[Action] = ACTIONS) -> str:
    """Return the table of these actions, a line each: slash command, what it does, its keys."""
    rows = [
        (
            f"/{action.slash} {action.argument}".rstrip(" /"),
            f"{action.title} ({keys[action.id].replace(',', ', ')})" if action.id in keys else action.title,
        )
        for action in actions
    ]
    width = max(len(slash) for slash, _ in rows)
    return "\n".join(f"{slash:<{width}}  {title}" for slash, title in rows)
