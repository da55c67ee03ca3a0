"""Conversations that are kept: a tree of messages each, in SQLite."""
