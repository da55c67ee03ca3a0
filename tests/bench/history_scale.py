"""A history of 100,000 messages: how long a search takes, and how long it takes to open it and to show a conversation.

The texts are words drawn as often as words occur (Zipf's law), up to 150 in a message. A search is what somebody types: a common word, a
rare one, both, the beginning of one, a phrase, and each of these for answers only. Opening is a new `History`, its list, and
one conversation as a tree, in a process that has had the file open before. The write is one streamed answer until it is on disk.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common import finish, say

from pinyon.app.history import rows
from pinyon.app.history.database import open_database
from pinyon.app.history.history import History
from pinyon.app.history.ids import new_id
from pinyon.app.history.records import Conversation, Message, Role, State
from pinyon.app.history.rows import Change

MESSAGES = 100_000
TURNS = 50
"""Messages of a conversation."""
VOCABULARY = 20_000
LONGEST = 150


def vocabulary(choose: random.Random) -> list[str]:
    return ["".join(choose.choices("abcdefghijklmnopqrstuvwxyz", k=choose.randint(3, 11))) for _ in range(VOCABULARY)]


def conversations(choose: random.Random, words: list[str], messages: int) -> Iterator[Change]:
    weights = [1 / (rank + 1) for rank in range(len(words))]
    at_s, number = time.time() - 300 * messages, 0
    for conversation in range(messages // TURNS):
        name, parent, path = f"{conversation:016x}", None, []
        for turn in range(TURNS):
            at_s += 200
            number = new_id(at_s, number)
            text = " ".join(choose.choices(words, weights, k=choose.randint(10, LONGEST)))
            role = Role.ASSISTANT if turn % 2 else Role.USER
            path.append(Message(number, name, parent, role, text, "", State.COMPLETE, at_s, used=number))
            parent = number
        yield Change(Conversation(name, path[0].text[:60], at_s, at_s, "model"), True, frozenset(), tuple(path))


def fill(path: Path, choose: random.Random, words: list[str], messages: int) -> None:
    with History(path) as history:
        history.start(title="the newest", model="model")
    database = open_database(path)
    assert database.writer is not None
    rows.write(database.writer, conversations(choose, words, messages))
    database.close()


def searches(choose: random.Random, words: list[str], rounds: int) -> Iterator[tuple[str, Role | None]]:
    for _ in range(rounds):
        common, other, rare = choose.choice(words[:100]), choose.choice(words[:1000]), choose.choice(words[5000:])
        for typed in (
            f"{common} ",
            f"{rare} ",
            f"{common} {rare} ",
            f"{common} {other[:2]}",
            rare[:4],
            f'"{common} {other}"',
        ):
            yield typed, None
            yield typed, Role.ASSISTANT


def milliseconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def open_and_show(path: Path) -> None:
    with History(path) as history:
        listed = history.conversations()
        if len(history.tree(listed[100].id).path()) != TURNS:
            raise SystemExit("invalid run: the conversation is not whole")


def save(path: Path) -> float:
    with History(path) as history:
        name = history.start(title="", model="model").id
        answer = history.add(name, None, Role.ASSISTANT, "", state=State.STREAMING).id
        history.flush()
        history.stream(answer, "word " * 100)
        return milliseconds(history.flush)


def percentiles(figures: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(figures), 2),
        "p95": round(statistics.quantiles(figures, n=20)[18], 2),
        "max": round(max(figures), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="default %(default)s")
    parser.add_argument(
        "--rounds", type=int, default=40, help="twelve searches each, one opening (default %(default)s)"
    )
    arguments = parser.parse_args()
    choose = random.Random(1)  # the same history in every run
    words = vocabulary(choose)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        say(f"writing {arguments.messages:,} messages")
        fill(path, choose, words, arguments.messages)
        opening = [milliseconds(lambda: open_and_show(path)) for _ in range(arguments.rounds)]
        say(f"opening {percentiles(opening)} ms")
        with History(path) as history:
            found, searching = 0, []
            for typed, role in searches(choose, words, arguments.rounds):
                started = time.perf_counter()
                found += len(history.search(typed, role=role))
                searching.append(1000 * (time.perf_counter() - started))
        say(f"searching {percentiles(searching)} ms")
        saving = [save(path) for _ in range(arguments.rounds)]
        size_bytes = path.stat().st_size
    if not found:
        raise SystemExit("invalid run: nothing was found")
    finish(
        {
            "messages": arguments.messages,
            "size_bytes": size_bytes,
            "searches": len(searching),
            "found": found,
            "search_ms": percentiles(searching),
            "open_ms": percentiles(opening),
            "save_ms": percentiles(saving),
        }
    )


if __name__ == "__main__":
    main()
