"""A message written in the user's own editor, the chat set aside meanwhile."""

import asyncio
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from pinyon.app.errors import UsageError


async def written_in_editor(app: App[object], text: str) -> str:
    """Return the text as it is after the user has edited it. What streams goes on meanwhile, unseen.

    Raises:
        UsageError: no editor can be started here.
    """
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="pinyon-") as folder:
        path = Path(folder, "message.md")
        path.write_text(text, "utf-8", errors="replace")  # noqa: ASYNC240  a small file
        try:
            # Without the batch, what streams would be painted over the editor.
            with app.batch_update(), app.suspend():
                done = await asyncio.to_thread(subprocess.run, [*command, str(path)], check=False)
        except (OSError, SuspendNotSupported) as error:
            raise UsageError(
                f"the editor {command[0]!r} cannot be started: {error}; set EDITOR to another one"
            ) from error
        app.refresh(layout=True)
        if done.returncode:
            raise UsageError(f"the editor ended with code {done.returncode}: the message stays as it was")
        return path.read_text("utf-8", errors="replace").rstrip("\n")  # noqa: ASYNC240
