"""POST /v1/completions: text or tokens that the model goes on with, without a chat template."""

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Annotated, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from starlette.responses import Response

from pinyon.app.api.answering import (
    Extras,
    OpenAnswer,
    UsageShown,
    all_accepted,
    close_all,
    error_event,
    merged,
)
from pinyon.app.api.door import Door, door_of
from pinyon.app.api.errors import invalid
from pinyon.app.api.fields import SamplingFields, bounded, documented, json_body
from pinyon.app.api.guard import Caller, caller_of
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.api.logprobs import TextLogprobs, text_logprobs
from pinyon.app.api.sse import DONE, Stream, data_event, until_disconnect
from pinyon.app.ask import Ask, RawText, RawTokens
from pinyon.app.limits import MAX_PROMPT_TOKENS, MAX_PROMPTS
from pinyon.app.loaded_model import LoadedModel
from pinyon.engine.events import Chunk, Finished, Usage
from pinyon.engine.request import MAX_TOP_LOGPROBS

router = APIRouter()

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route; a chat goes on until it ends."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], bounded(MAX_PROMPT_TOKENS, 1)]
Many = bounded(MAX_PROMPTS, 1)


class CompletionRequest(SamplingFields):
    refused: ClassVar[dict[str, str]] = {
        **SamplingFields.refused,
        "response_format": "this route shapes an answer by regex or grammar; a chat takes response_format",
        "suffix": "text after the gap is not supported yet",
        "best_of": "best_of is not supported: ask for n",
        "prompt_embeds": "embeddings as a prompt are not supported",
    }

    prompt: str | Tokens | Annotated[list[str], Many] | Annotated[list[Tokens], Many]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_of_the_four(cls, prompt: object, validate: ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(prompt)
        except ValidationError:  # it tells what is wrong with each of the four, but not which one was meant
            raise ValueError(f"takes a text, token ids, or a list of 1 to {MAX_PROMPTS} of one of them") from None

    def prompts(self) -> list[RawText | RawTokens]:
        if isinstance(self.prompt, str):
            return [RawText(self.prompt)]
        tokens = [item for item in self.prompt if isinstance(item, int)]
        if tokens:
            return [RawTokens(tuple(tokens))]
        return [
            RawText(item) if isinstance(item, str) else RawTokens(tuple(item))
            for item in self.prompt
            if not isinstance(item, int)
        ]

    def asks(self, caller: Caller) -> list[Ask]:
        """Return one ask a prompt. Raises ApiError that names the field which cannot be served."""
        if self.echo and self.logprobs is not None:
            raise invalid(
                "echo", "echo with logprobs is not supported yet: the log probabilities are the answer's alone"
            )
        max_tokens, grammar = self.max_tokens or DEFAULT_MAX_TOKENS, self.only_grammar()
        return [self.ask_of(caller, prompt, max_tokens, self.logprobs, grammar) for prompt in self.prompts()]


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """An answer, or a part of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: UsageShown | msgspec.UnsetType | None = msgspec.UNSET
    pinyon: Extras | msgspec.UnsetType = msgspec.UNSET


@router.post("/v1/completions", openapi_extra=documented(CompletionRequest, Completion))
async def completions(
    request: Request, body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
) -> Response:
    """Go on with a text. Several prompts give their choices one after the other."""
    return await until_disconnect(request.receive, _respond(door_of(request), body, caller_of(request)))


async def _respond(door: Door, body: CompletionRequest, caller: Caller) -> Response:
    asks = body.asks(caller)
    async with door.using(body.model, body.kept_alive) as model:
        echoes = [await _shown(model, prompt) if body.echo else "" for prompt in body.prompts()]
        answers = await all_accepted(door, model, asks)
    reply = _Reply(f"cmpl-{asks[0].id}", int(time.time()), model.name, body, echoes)
    if body.stream:
        return Stream(reply.stream(answers), error_event, partial(close_all, answers), comment=answers[0].comment)
    try:
        return JsonAnswer(await reply.whole(answers))
    finally:
        await close_all(answers)


async def _shown(model: LoadedModel, prompt: RawText | RawTokens) -> str:
    """Return a prompt as text."""
    return prompt.text if isinstance(prompt, RawText) else await model.detokenize(prompt.ids)


class _Reply:
    """Writes the answers to all prompts of one request in the format of this route. `echoes` come before their texts."""

    def __init__(self, reply_id: str, created: int, model: str, body: CompletionRequest, echoes: list[str]) -> None:
        self._head = (reply_id, "text_completion", created, model)
        self._body = body
        self._echoes = echoes
        self._n = body.n or 1
        self._no_usage = None if body.wants_usage else msgspec.UNSET
        self._offsets = [0] * (len(echoes) * self._n)
        self._ends: dict[int, Finished] = {}

    async def whole(self, answers: list[OpenAnswer]) -> Completion:
        choices = []
        for number, answer in enumerate(answers):
            parts, finished = await answer.whole(self._n)
            self._ends[number] = finished
            for index, (part, reason) in enumerate(zip(parts, finished.reasons, strict=True)):
                text = self._echoes[number] + "".join(part.text)
                logprobs = None if self._top is None else text_logprobs(part.logprobs, 0, with_top=self._top > 0)
                choices.append(TextChoice(number * self._n + index, text, logprobs, str(reason)))
        return Completion(*self._head, tuple(choices), self._usage(), self._extras())

    @property
    def _top(self) -> int | None:
        return self._body.logprobs

    async def stream(self, answers: list[OpenAnswer]) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(merged(answers)) as events:
            for index in range(len(self._offsets)) if self._body.echo else ():
                yield self._event(TextChoice(index, self._echoes[index // self._n]))
            async for number, event in events:
                if isinstance(event, Chunk):
                    yield self._event(self._choice(number * self._n + event.index, event))
                else:
                    for piece in self._end(number, event):
                        yield piece

    def _event(self, choice: TextChoice) -> bytes:
        return data_event(Completion(*self._head, (choice,), self._no_usage))

    def _choice(self, index: int, chunk: Chunk) -> TextChoice:
        if self._top is None:
            return TextChoice(index, chunk.text)
        logprobs = text_logprobs(chunk.logprobs, self._offsets[index], with_top=self._top > 0)
        self._offsets[index] += sum(map(len, logprobs.tokens))
        return TextChoice(index, chunk.text, logprobs)

    def _end(self, number: int, finished: Finished) -> Iterable[bytes]:
        """Yield what tells the end of one answer, and after the last one's of the whole."""
        self._ends[number] = finished
        is_last = len(self._ends) == len(self._echoes)
        for index, reason in enumerate(finished.reasons):
            choice = TextChoice(number * self._n + index, "", None, str(reason))
            extras = self._extras() if is_last and index == self._n - 1 else msgspec.UNSET
            yield data_event(Completion(*self._head, (choice,), self._no_usage, extras))
        if is_last:
            if self._body.wants_usage:
                yield data_event(Completion(*self._head, (), self._usage()))
            yield DONE

    def _usage(self) -> UsageShown:
        usages = [finished.usage for finished in self._ends.values()]
        totals = (sum(getattr(usage, name) for usage in usages) for name in Usage.__struct_fields__)
        return UsageShown.of(Usage(*totals))

    def _extras(self) -> Extras:
        return Extras.of(self._ends[0], self._body.ignored())
