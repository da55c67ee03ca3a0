"""Short ways to ask an engine and to read its events."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Chunk, Event, Failed, Finished
from pinyon.engine.request import GenerateRequest, SamplingParams, Text

GREEDY = SamplingParams(temperature=0)


def config(path: Path, **fields: int) -> EngineConfig:
    return EngineConfig(bytes(path), threads=2, **fields)


def ask(request_id: str, text: str = "Once upon a time", **fields: object) -> GenerateRequest:
    """A greedy request for text, control tokens in it parsed."""
    return GenerateRequest(request_id, (Text(text, special=True),), **{"sampling": GREEDY, **fields})


async def answer(client: EngineClient, request: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(request)]


def text_of(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Chunk))


def ids_of(events: Iterable[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Chunk) for token in event.token_ids]


def end_of(events: Sequence[Event]) -> Finished | Failed:
    """Return the last event, after checking that it is the only terminal one."""
    terminal = [event for event in events if isinstance(event, Finished | Failed)]
    assert terminal == [events[-1]], "exactly one terminal event, at the end"
    return terminal[0]
