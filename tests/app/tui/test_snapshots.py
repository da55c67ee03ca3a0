"""Pictures of the main screen: three sizes, dark and light. `pytest --snapshot-update` draws them anew; look at each."""

import asyncio

import pytest
from fake_chat import FakeChat
from fake_service import says

from pinyon.app.ask import SamplingChoice
from pinyon.app.history.records import Answered, Role, State
from pinyon.app.settings import Settings
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.events import FinishReason, Timings, Usage

ANSWER = """\
A pinyon jay remembers **thousands** of places. For a program that is:

1. hash the place;
2. look it up:

```python
def find(seed: str) -> int:
    return places[hash(seed)]
```

| jay | seeds |
|---|---|
| pinyon | 26,000 |
| 松カケス | 4,000 |
"""


def talk(chat):
    """A conversation with a system message, a stopped answer, a whole one with its figures, and others beside it."""
    history = chat.history
    for title in ("Bark beetles", "[b]Why[/b] do jays hide seeds?"):
        other = history.start(title=title, model="smollm2")
        history.add(other.id, None, Role.USER, title)
    conversation = history.start(title="How does a jay find its seeds?", model="smollm2")
    parent = history.add(conversation.id, None, Role.SYSTEM, "You know birds.").id
    question = history.add(conversation.id, parent, Role.USER, "How does a jay find its seeds?").id
    stopped = history.add(conversation.id, question, Role.ASSISTANT, "It looks", state=State.STREAMING)
    history.finish(stopped.id, State.CANCELLED, None)
    whole = history.add(conversation.id, question, Role.ASSISTANT, ANSWER, state=State.STREAMING)
    usage, cache = Usage(420, 91, cached_tokens=384), CacheReport(ram=384)
    timings = Timings(0.0, 0.12, 1.8)
    history.finish(
        whole.id,
        State.COMPLETE,
        Answered("smollm2", "", SamplingChoice(), FinishReason.STOP, usage, timings, cache, 7),
    )
    return conversation.id


@pytest.fixture
def event_loop_of_its_own():
    """The plugin runs the application by itself: it needs a thread without a running loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_main_screen(tmp_path, snap_compare, event_loop_of_its_own, size, theme):
    chat = FakeChat(tmp_path, says("Aye."), settings=Settings(theme=theme))
    chat.screen._conversation = talk(chat)

    async def drawn(pilot):
        await pilot.pause()
        await chat.dialogue.finished()
        await chat.screen.transcript.settled()
        await pilot.pause()

    assert snap_compare(chat.app, terminal_size=size, run_before=drawn)
    chat.history.close()
