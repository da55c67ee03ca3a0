"""The chat in the terminal. Nothing outside this package imports Textual but the command that starts it."""
