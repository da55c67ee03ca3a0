"""A process that writes a history until it is killed: `python history_writer.py FILE`. It says on stdout what it knows to be saved.

Each line is a JSON object: {id of a message: its text so far}; null is one that may be gone from now on, false one that is gone.
"""

import json
import os
import sys
from itertools import count
from pathlib import Path

from pinyon.app.history.history import History
from pinyon.app.history.records import Role, State


def give_up(trouble: str) -> None:
    print(trouble, file=sys.stderr, flush=True)
    os._exit(1)


history = History(Path(sys.argv[1]), give_up)


def say(texts: dict[int, str | bool | None]) -> None:
    print(json.dumps(texts), flush=True)


def acknowledge(texts: dict[int, str | bool | None]) -> None:
    history.flush()
    say(texts)


for turn in count():
    conversation = history.start(title=f"turn {turn}", model="tiny").id
    asked = history.add(conversation, None, Role.USER, f"asked {turn} " * 50).id
    answer = history.add(conversation, asked, Role.ASSISTANT, "", state=State.STREAMING).id
    acknowledge({asked: f"asked {turn} " * 50})
    text = ""
    for piece in range(turn % 5):
        history.stream(answer, words := f"word {piece} " * 100)
        text += words
        acknowledge({answer: text})
    history.finish(answer, State.COMPLETE, None)
    acknowledge({answer: text})
    if turn % 7 == 6:
        say({asked: None, answer: None})
        history.purge(conversation)
        acknowledge({asked: False, answer: False})
