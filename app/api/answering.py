"""From an ask to an answer, the same for every dialect: accepted or refused, then whole or as it streams."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import msgspec

from pinyon.app.api.door import Door, ended_early
from pinyon.app.api.errors import of_exception, of_failure
from pinyon.app.api.sse import data_event
from pinyon.app.ask import Ask
from pinyon.app.loaded_model import LoadedModel
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.events import Chunk, Event, Failed, Finished, FinishReason, PositionLogprobs, Progress, Usage


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageShown(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails

    @classmethod
    def of(cls, usage: Usage) -> "UsageShown":
        total = usage.prompt_tokens + usage.completion_tokens
        details = PromptDetails(usage.cached_tokens), CompletionDetails(usage.reasoning_tokens)
        return cls(usage.prompt_tokens, usage.completion_tokens, total, *details)


class TimingsShown(msgspec.Struct, frozen=True):
    """Seconds: waiting, from then to the first token, from the first token to the last."""

    queue_s: float
    prefill_s: float
    decode_s: float


class Extras(msgspec.Struct, frozen=True):
    """What Pinyon tells beyond the API: the fields without effect, the seed that was used, where the time went, what of the
    prompt did not have to be computed, and what came of drafts.
    """

    ignored: list[str]
    seed: int | None
    timings: TimingsShown
    cache: CacheReport
    speculation: DraftReport

    @classmethod
    def of(cls, finished: Finished, ignored: list[str]) -> "Extras":
        timings = finished.timings
        rounded = TimingsShown(round(timings.queue_s, 4), round(timings.prefill_s, 4), round(timings.decode_s, 4))
        return cls(ignored, finished.seed, rounded, finished.cache, finished.speculation)


@dataclass
class Whole:
    """One choice, put together."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)


class OpenAnswer:
    """An ask that the engine has accepted. `events` are the ones after that; whoever holds this closes it."""

    def __init__(self, events: AsyncGenerator[Event], progress: Progress) -> None:
        self.events = events
        self.progress = progress

    async def close(self) -> None:
        await self.events.aclose()

    def comment(self) -> str:
        """Say how far the prompt is."""
        return f"{self.progress.done} of {self.progress.total} prompt tokens computed"

    async def chunks(self) -> AsyncGenerator[Chunk | Finished]:
        """Yield the chunks, then the end.

        Raises:
            ApiError: the answer failed.
            ShuttingDownError: the server ended it.
        """
        async for event in self.events:
            match event:
                case Chunk():
                    yield event
                case Progress():
                    self.progress = event
                case Failed():
                    raise of_failure(event)
                case Finished(reasons=reasons):
                    if FinishReason.CANCELLED in reasons:
                        raise ended_early()
                    yield event

    async def whole(self, choices: int) -> tuple[list[Whole], Finished]:
        """Wait for the end; return every choice. Raises ApiError."""
        parts = [Whole() for _ in range(choices)]
        async with contextlib.aclosing(self.chunks()) as chunks:
            async for event in chunks:
                if isinstance(event, Finished):
                    return parts, event
                part = parts[event.index]
                part.text.append(event.text)
                part.reasoning.append(event.reasoning)
                part.logprobs += event.logprobs
        raise AssertionError("every answer ends in Finished or Failed")


async def accepted(door: Door, model: LoadedModel, ask: Ask) -> OpenAnswer:
    """Return the answer once the engine has checked the ask: from here on only the engine itself can fail.

    Raises:
        ApiError: the engine refuses it.
        ShuttingDownError, TemplateError: as Door.events.
    """
    events = door.events(model, ask)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    if isinstance(first, Progress):
        return OpenAnswer(events, first)
    await events.aclose()
    raise of_failure(first) if isinstance(first, Failed) else ended_early()


async def all_accepted(door: Door, model: LoadedModel, asks: Sequence[Ask]) -> list[OpenAnswer]:
    """Return the answers to several asks; where one is refused, none goes on."""
    accepting = [asyncio.ensure_future(accepted(door, model, ask)) for ask in asks]
    try:
        return list(await asyncio.gather(*accepting))
    except BaseException:
        for task in accepting:
            task.cancel()
        results = await asyncio.gather(*accepting, return_exceptions=True)
        await close_all([result for result in results if isinstance(result, OpenAnswer)])
        raise


async def close_all(answers: Sequence[OpenAnswer]) -> None:
    await asyncio.gather(*(answer.close() for answer in answers))


def error_event(error: Exception) -> bytes:
    """Return the server-sent event that ends a stream in its middle."""
    return data_event(of_exception(error).answer)


async def merged(answers: Sequence[OpenAnswer]) -> AsyncGenerator[tuple[int, Chunk | Finished]]:
    """Yield the chunks and ends of several answers as they come, each with its answer's number. Raises ApiError."""
    if len(answers) == 1:  # needs no task of its own, whose wake-ups would cost a small model speed
        async for event in answers[0].chunks():
            yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Chunk | Finished | Exception]] = asyncio.Queue()

    async def pump(number: int, answer: OpenAnswer) -> None:
        try:
            async for event in answer.chunks():
                queue.put_nowait((number, event))
        except Exception as error:  # noqa: BLE001  raised where the queue is read
            queue.put_nowait((number, error))

    pumps = [asyncio.create_task(pump(number, answer)) for number, answer in enumerate(answers)]
    ended = 0
    try:
        while ended < len(answers):
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            ended += isinstance(item, Finished)
            yield number, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
