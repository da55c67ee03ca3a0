"""POST /v1/tokenize and /v1/detokenize: text to token ids and back, as the model sees them."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from pinyon.app.api.completions import TokenId
from pinyon.app.api.door import Door, door_of
from pinyon.app.api.errors import invalid
from pinyon.app.api.fields import Fields, ModelName, bounded, documented, json_body
from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.api.messages import Messages
from pinyon.app.api.sse import until_disconnect
from pinyon.app.ask import Chat, Prompt, RawText
from pinyon.app.limits import MAX_PROMPT_TOKENS

router = APIRouter()


class TokenizeRequest(Fields):
    """Either a text, or messages that the model's chat template makes a text of."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None

    def as_prompt(self) -> Prompt:
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "send either `prompt` or `messages`")
        if self.prompt is not None:
            return RawText(self.prompt)
        return Chat(tuple(m.as_message(f"messages.{index}") for index, m in enumerate(self.messages or ())))


class DetokenizeRequest(Fields):
    model: ModelName | None = None
    tokens: Annotated[list[TokenId], bounded(MAX_PROMPT_TOKENS)]


class TokenList(msgspec.Struct, frozen=True):
    """`tokens` are those that a request with this prompt computes, the model's start token included."""

    model: str
    tokens: tuple[int, ...]
    count: int
    max_model_len: int


class DetokenizedText(msgspec.Struct, frozen=True):
    model: str
    prompt: str


@router.post("/v1/tokenize", openapi_extra=documented(TokenizeRequest, TokenList))
async def tokenize(request: Request, body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]) -> Response:
    """Count the tokens of a prompt without computing it."""
    return await until_disconnect(request.receive, _tokenize(door_of(request), body))


async def _tokenize(door: Door, body: TokenizeRequest) -> Response:
    prompt = body.as_prompt()
    async with door.using(body.model) as model:
        ids = await model.tokenize(prompt)
    return JsonAnswer(TokenList(model.name, ids, len(ids), model.context_tokens))


@router.post("/v1/detokenize", openapi_extra=documented(DetokenizeRequest, DetokenizedText))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
) -> Response:
    """Return the visible text of tokens; control tokens have none."""
    return await until_disconnect(request.receive, _detokenize(door_of(request), body))


async def _detokenize(door: Door, body: DetokenizeRequest) -> Response:
    async with door.using(body.model) as model:
        return JsonAnswer(DetokenizedText(model.name, await model.detokenize(tuple(body.tokens))))
