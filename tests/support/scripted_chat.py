"""The chat with a model that says what a script has for it, at its pace: `python scripted_chat.py SCRIPT.json`, in a terminal.

The script is a Script as JSON. Every prompt gets the next of its answers, a piece at a time; after the last one, a failure.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from pinyon.app.ask import Ask
from pinyon.app.conversing import Choices
from pinyon.app.history.history import History
from pinyon.app.settings import Folders, Settings
from pinyon.app.tui.app import ChatApp
from pinyon.app.tui.chat_screen import ChatScreen
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import (
    Chunk,
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    Progress,
    Removed,
    Timings,
    Usage,
)
from pinyon.engine.meters import Meters


class Script(msgspec.Struct):
    answers: list[list[str]]
    thoughts: str = ""
    pace_s: float = 0.02
    model: str = "scripted"
    titles: list[str] = []
    """Conversations that are there already."""
    failure: str = "nothing is left to say"


class ScriptedModel:
    """As service.Model. A token a piece."""

    context_tokens = 4096
    threads = 1
    kv_type = "f16"
    why_no_disk = ""
    compromises = ()
    digest = "ab" * 32

    def __init__(self, script: Script) -> None:
        self.name = script.model
        self._script = script
        self._answers = iter(script.answers)
        self._cancelled: set[str] = set()

    async def generate(self, ask: Ask) -> AsyncGenerator[Event]:
        yield Progress(0, 10)
        yield Progress(10, 10, cached=4)
        pieces = next(self._answers, None)
        if pieces is None:
            yield Failed(FailureKind.ENGINE_ERROR, self._script.failure)
            return
        if self._script.thoughts:
            yield Chunk(0, "", (), reasoning=self._script.thoughts)
        said = 0
        for piece in pieces:
            if ask.id in self._cancelled:
                break
            yield Chunk(0, piece, (said,))
            said += 1
            await asyncio.sleep(self._script.pace_s)
        reason = FinishReason.CANCELLED if ask.id in self._cancelled else FinishReason.STOP
        yield Finished((reason,), Usage(10, said, cached_tokens=4), Timings(0.0, 0.1, said * 0.02), seed=1)

    async def cancel(self, ask_id: str) -> None:
        self._cancelled.add(ask_id)

    async def count(self, text: str) -> int:
        return len(text)

    async def estimate(self, _ask: Ask) -> Estimate:
        return Estimate(10, resident=4)


class ScriptedBackend:
    """As Backend."""

    url = None

    def __init__(self, script: Script) -> None:
        self.model = ScriptedModel(script)

    async def load(self, *_: object, **_named: object) -> ScriptedModel:
        return self.model

    async def meters(self) -> Meters:
        return Meters(cells=4096, running=1)

    async def room(self) -> None:
        return None

    async def forget(self, _conversation: str) -> Removed:
        return Removed()


def main(path: str) -> int:
    script = msgspec.json.decode(Path(path).read_bytes(), type=Script)
    with contextlib.closing(History.in_memory()) as history:
        for title in script.titles:
            history.start(title=title, model=script.model)
        screen = ChatScreen(
            history,
            ScriptedBackend(script),  # type: ignore[arg-type]
            Folders.of_user(),
            Settings(),
            model=None,
            context=None,
            choices=Choices(),
            conversation=None,
        )
        app = ChatApp(screen, Settings())
        app.run()
    if app.fault is not None:
        raise app.fault
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
