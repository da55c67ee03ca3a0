"""Histories for tests: an answer as an engine reports it, a conversation with one, and what a file holds."""

import sqlite3
from contextlib import closing
from pathlib import Path

from pinyon.app.ask import SamplingChoice
from pinyon.app.history.history import History
from pinyon.app.history.records import Answered, Conversation, Message, Role, State
from pinyon.app.history.words import searchable
from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.events import FinishReason, Timings, Usage

ANSWERED = Answered(
    model="tiny",
    digest="ab" * 32,
    settings=SamplingChoice(temperature=0.5, top_k=3),
    finish_reason=FinishReason.STOP,
    usage=Usage(20, 5, cached_tokens=8),
    timings=Timings(0.25, 0.5, 1.0),
    cache=CacheReport(resident=8, miss=Miss.NEW, position=8),
    seed=7,
)


def told(history: History, question: str = "Why?", answer: str = "Because.") -> tuple[Conversation, list[Message]]:
    """Begin a conversation with a question and an answer; return it and its path."""
    begun = history.start(title=question, model="tiny")
    asked = history.add(begun.id, None, Role.USER, question)
    given = history.add(begun.id, asked.id, Role.ASSISTANT, "", state=State.STREAMING)
    history.stream(given.id, answer)
    history.finish(given.id, State.COMPLETE, ANSWERED)
    return history.conversation(begun.id), history.tree(begun.id).path()


def rows(path: Path, statement: str, *parameters: object) -> list[tuple]:
    """What a file answers, read by a connection of its own."""
    with closing(_connected(path)) as database:
        return database.execute(statement, parameters).fetchall()


def change(path: Path, statement: str) -> None:
    with closing(_connected(path)) as database, database:
        database.executescript(statement)


def assert_sound(path: Path) -> None:
    """The file is whole, and its index holds what its messages say, and nothing else."""
    with closing(_connected(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.executescript("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, search, instance)")
        indexed = set(database.execute("SELECT doc, term FROM terms WHERE col = 'text'"))
        fresh = sqlite3.connect(":memory:")
        fresh.executescript(
            "CREATE VIRTUAL TABLE search USING fts5(text, tokenize = 'unicode61 remove_diacritics 2');"
            "CREATE VIRTUAL TABLE terms USING fts5vocab(search, instance)"
        )
        texts = database.execute("SELECT id, searchable(text) FROM messages WHERE state <> 'streaming'")
        fresh.executemany("INSERT INTO search (rowid, text) VALUES (?, ?)", texts)
        assert indexed == set(fresh.execute("SELECT doc, term FROM terms"))
        fresh.close()


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.create_function("searchable", 1, searchable)
    return database
