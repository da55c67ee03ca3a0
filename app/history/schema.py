"""The tables of the history, and how a file of an earlier version gets them.

A change is a new entry in MIGRATIONS, never an edit of an old one. Triggers keep the search index: no code can forget it.
"""

from typing import Final

APPLICATION_ID: Final = 0x50696E79
"""Marks a file as a history of Pinyon's."""

_FIRST = (
    """CREATE TABLE conversations (
        id TEXT PRIMARY KEY, title TEXT NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL, model TEXT NOT NULL,
        deleted_at REAL
    ) WITHOUT ROWID""",
    "CREATE INDEX conversations_by_time ON conversations (updated_at)",
    # `answered` and `attached` are JSON; `writer` is the process that is streaming the message.
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY, conversation TEXT NOT NULL, parent INTEGER, role TEXT NOT NULL, text TEXT NOT NULL,
        reasoning TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, model TEXT NOT NULL, answered TEXT,
        attached TEXT NOT NULL, error TEXT NOT NULL, used INTEGER NOT NULL, writer TEXT NOT NULL
    )""",
    "CREATE INDEX messages_by_conversation ON messages (conversation)",
    "CREATE INDEX answers_by_model ON messages (model) WHERE answered IS NOT NULL",
    "CREATE INDEX messages_streaming ON messages (state) WHERE state = 'streaming'",
    "CREATE VIEW searched AS SELECT id, searchable(text) AS text, role, model FROM messages",
    """CREATE VIRTUAL TABLE search USING fts5 (
        text, role, model, content = 'searched', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
    )""",
    # What still streams is not searched: its text changes twice a second.
    """CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'streaming' BEGIN
        INSERT INTO search (rowid, text, role, model) VALUES (new.id, searchable(new.text), new.role, new.model);
    END""",
    """CREATE TRIGGER message_removed AFTER DELETE ON messages WHEN old.state <> 'streaming' BEGIN
        INSERT INTO search (search, rowid, text, role, model)
        VALUES ('delete', old.id, searchable(old.text), old.role, old.model);
    END""",
    """CREATE TRIGGER message_changes BEFORE UPDATE ON messages
    WHEN old.state <> 'streaming' AND (new.state = 'streaming' OR old.text <> new.text OR old.model <> new.model) BEGIN
        INSERT INTO search (search, rowid, text, role, model)
        VALUES ('delete', old.id, searchable(old.text), old.role, old.model);
    END""",
    """CREATE TRIGGER message_changed AFTER UPDATE ON messages
    WHEN new.state <> 'streaming' AND (old.state = 'streaming' OR old.text <> new.text OR old.model <> new.model) BEGIN
        INSERT INTO search (rowid, text, role, model) VALUES (new.id, searchable(new.text), new.role, new.model);
    END""",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
"""Entry n takes a file from schema n to n + 1; a new file is one of schema 0."""
