"""POST /v1/chat/completions, as OpenAI's API has it."""

import time
from collections.abc import AsyncGenerator, Iterable
from typing import Annotated, ClassVar, Literal

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from pinyon.app.api.answering import Extras, OpenAnswer, UsageShown, Whole, accepted, error_event
from pinyon.app.api.door import Door, door_of
from pinyon.app.api.errors import invalid
from pinyon.app.api.fields import Fields, SamplingFields, TokenCount, checked, documented, json_body
from pinyon.app.api.guard import Caller, caller_of
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.api.logprobs import ChatLogprobs, chat_logprobs
from pinyon.app.api.messages import Messages
from pinyon.app.api.sse import DONE, Stream, data_event, until_disconnect
from pinyon.app.ask import Ask, Chat
from pinyon.engine import grammar
from pinyon.engine.events import Chunk, Finished
from pinyon.engine.request import MAX_TOP_LOGPROBS, Grammar

router = APIRouter()


class JsonSchema(Fields):
    name: str | None = None
    schema_: Annotated[dict[str, JsonValue] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def as_grammar(self) -> Grammar | None:
        if self.type == "json_object" and "schema" in (self.model_extra or {}):
            raise invalid(
                "response_format.schema", "a schema needs the type json_schema, and stands in json_schema.schema"
            )
        if self.type == "json_object":
            return grammar.json_object()
        if self.type == "text":
            return None
        schema = None if self.json_schema is None else self.json_schema.schema_
        if schema is None:
            raise invalid("response_format.json_schema", "json_schema needs a `schema`")
        return checked("response_format.json_schema.schema", grammar.json_schema, schema)


class ChatRequest(SamplingFields):
    refused: ClassVar[dict[str, str]] = {
        **SamplingFields.refused,
        "tools": "tools are not supported yet",
        "functions": "tools are not supported yet",
        "prompt_embeds": "embeddings as a prompt are not supported",
        "audio": "audio is not supported",
        "best_of": "best_of is not supported: ask for n",
    }

    messages: Messages
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None

    def ask(self, caller: Caller) -> Ask:
        """Return what is asked of the engine. Raises ApiError that names the field which cannot be served."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
        return self.ask_of(
            caller,
            Chat(tuple(message.as_message(f"messages.{index}") for index, message in enumerate(self.messages))),
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            grammar=self.only_grammar(),
        )

    def grammars(self) -> Iterable[tuple[str, Grammar]]:
        yield from super().grammars()
        if self.response_format is not None and (found := self.response_format.as_grammar()) is not None:
            yield "response_format", found


class AnswerMessage(msgspec.Struct, frozen=True):
    role: str
    content: str
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageShown
    pinyon: Extras


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A part of a streamed answer. `usage` is there only where the client asked for it, and null but for the last."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: UsageShown | msgspec.UnsetType | None = msgspec.UNSET
    pinyon: Extras | msgspec.UnsetType = msgspec.UNSET


@router.post("/v1/chat/completions", openapi_extra=documented(ChatRequest, ChatCompletion))
async def chat_completions(request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest))]) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    return await until_disconnect(request.receive, _respond(door_of(request), body, caller_of(request)))


async def _respond(door: Door, body: ChatRequest, caller: Caller) -> Response:
    ask = body.ask(caller)
    async with door.using(body.model, body.kept_alive) as model:
        answer = await accepted(door, model, ask)
    reply = _Reply(f"chatcmpl-{ask.id}", int(time.time()), model.name, body)
    if body.stream:
        return Stream(reply.stream(answer), error_event, answer.close, comment=answer.comment)
    try:
        choices, finished = await answer.whole(ask.n)
    finally:
        await answer.close()
    return JsonAnswer(reply.whole(choices, finished))


class _Reply:
    """Writes one answer in the format of this route."""

    def __init__(self, reply_id: str, created: int, model: str, body: ChatRequest) -> None:
        self._head = (reply_id, "chat.completion.chunk", created, model)
        self._body = body
        self._no_usage = None if body.wants_usage else msgspec.UNSET

    def whole(self, parts: list[Whole], finished: Finished) -> ChatCompletion:
        reply_id, _, created, model = self._head
        choices = [
            Choice(index, self._message(part), self._logprobs(part), str(reason))
            for index, (part, reason) in enumerate(zip(parts, finished.reasons, strict=True))
        ]
        usage = UsageShown.of(finished.usage)
        extras = Extras.of(finished, self._body.ignored())
        return ChatCompletion(reply_id, "chat.completion", created, model, choices, usage, extras)

    @staticmethod
    def _message(part: Whole) -> AnswerMessage:
        reasoning = "".join(part.reasoning)
        return AnswerMessage("assistant", "".join(part.text), reasoning or msgspec.UNSET)

    def _logprobs(self, part: Whole | Chunk) -> ChatLogprobs | None:
        return chat_logprobs(part.logprobs) if self._body.logprobs else None

    async def stream(self, answer: OpenAnswer) -> AsyncGenerator[bytes]:
        for index in range(self._body.n or 1):
            yield self._event(ChunkChoice(index, Delta("assistant", "")))
        async for event in answer.chunks():
            if isinstance(event, Chunk):
                delta = Delta(None, event.text or None, event.reasoning or None)
                yield self._event(ChunkChoice(event.index, delta, self._logprobs(event)))
            else:
                for piece in self._end(event):
                    yield piece

    def _event(self, choice: ChunkChoice) -> bytes:
        return data_event(ChatChunk(*self._head, (choice,), self._no_usage))

    def _end(self, finished: Finished) -> Iterable[bytes]:
        last = len(finished.reasons) - 1
        for index, reason in enumerate(finished.reasons):
            extras = Extras.of(finished, self._body.ignored()) if index == last else msgspec.UNSET
            choice = ChunkChoice(index, Delta(), finish_reason=str(reason))
            yield data_event(ChatChunk(*self._head, (choice,), self._no_usage, extras))
        if self._body.wants_usage:
            yield data_event(ChatChunk(*self._head, (), UsageShown.of(finished.usage)))
        yield DONE
