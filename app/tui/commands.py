"""Everything that can be done in the chat: one table for keys, palette, mouse and slash commands. Knows no widget."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pinyon.app.errors import SettingsError


class Action(NamedTuple):
    """One thing to do. The chat screen does it in its method `action_ID`, which takes the argument as text.

    `key` is as Textual spells keys, several with commas between; empty where there is none. `argument` is how the help calls
    what may follow the slash command. `label` is for the footer; without one the action is not shown there.
    """

    id: str
    title: str
    key: str = ""
    slash: str = ""
    argument: str = ""
    label: str = ""


ACTIONS: Final = (
    Action("send", "Send the message", "enter"),
    Action("newline", "Begin a new line in the message", "shift+enter,alt+enter,ctrl+j"),
    Action("new", "Begin a new conversation", "ctrl+n", "new", label="New"),
    Action("sidebar", "Show or hide the conversations", "ctrl+b", "conversations", label="Conversations"),
    Action("search", "Search all conversations", "ctrl+f", "search", "[WORDS]", label="Search"),
    Action("model", "Choose the model that answers", "ctrl+o", "model", "[NAME]", label="Model"),
    Action("stop", "Stop the answer; what is there is kept", "escape", "stop", label="Stop"),
    Action("system", "Set what the model is told before everything else", slash="system", argument="[TEXT]"),
    Action("params", "Show or set how tokens are drawn", slash="params", argument="[NAME=VALUE ...]"),
    Action("preset", "Put a template's text into the prompt", slash="preset", argument="[NAME]"),
    Action("attach", "Attach a file", slash="attach", argument="[PATH]"),
    Action("editor", "Write the message in $EDITOR", "ctrl+g", "editor"),
    Action("cache", "What of the last prompt was reused, and why not more", slash="cache"),
    Action("context", "How much of the context is used", slash="context"),
    Action("gauges", "Show or hide the gauges", "f2", "gauges"),
    Action("reasoning", "Show or hide what the model thought", "ctrl+r", "reasoning"),
    Action("messages", "Go to the messages; up and down choose one", "ctrl+t", "messages"),
    Action("edit", "Edit a message of yours; the old one stays as a branch", "e", "edit"),
    Action("regenerate", "Answer again, as another branch", "r", "regenerate"),
    Action("go_on", "Go on with an answer that was cut off", "c", "continue"),
    Action("previous", "Show the branch before this one", "left", "previous"),
    Action("next", "Show the branch after this one", "right", "next"),
    Action("copy", "Copy a message", "y", "copy"),
    Action("delete", "Leave a message out, and what follows it", "delete", "delete"),
    Action("attachments", "Show or hide what is attached to a message", "a", "attachments"),
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
BOUND_ELSEWHERE: Final = frozenset(
    ("send", "newline", "edit", "regenerate", "go_on", "previous", "next", "copy", "delete", "attachments")
)
"""Whose keys mean this only in the prompt, or only among the messages."""
MAY_BE_LETTERS: Final = (BOUND_ELSEWHERE - {"send", "newline"}) | {"undo", "stop"}
"""Whose keys act only where nothing is typed."""
_BY_ID: Final = {action.id: action for action in ACTIONS}
_BY_SLASH: Final = {action.slash: action for action in ACTIONS if action.slash}


def keymap(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the key of every action that has one, the user's over the table's.

    Raises:
        SettingsError: an unknown action, none of its keys, one key for two actions, or a letter for one that acts in the prompt.
    """
    if unknown := keys.keys() - _BY_ID.keys():
        raise SettingsError(f"[keys]: there is no action {min(unknown)!r}; the actions are {', '.join(_BY_ID)}")
    if keyless := [action for action, key in keys.items() if not key.strip()]:
        raise SettingsError(f"[keys]: {keyless[0]!r} has no key; leave the line out for the usual one")
    chosen = {action.id: keys.get(action.id, action.key) for action in ACTIONS}
    owners: dict[str, str] = {}
    for action, names in chosen.items():
        for key in filter(None, (name.strip() for name in names.split(","))):
            if len(key) == 1 and action not in MAY_BE_LETTERS:
                raise SettingsError(
                    f"[keys]: {key!r} for {action!r} could not be typed any more; take f4, or ctrl and a letter"
                )
            if (other := owners.setdefault(key, action)) != action:
                raise SettingsError(
                    f"[keys]: {key!r} is set for {other!r} and for {action!r}; give one of them another key"
                )
    return {action: key for action, key in chosen.items() if key}


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
