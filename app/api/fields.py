"""The fields that OpenAI's two generating routes share: their types and ranges, and what they ask of the engine.

Types are strict: "2" is no number. None is the same as absent, zero is a value. A field that is not known is taken, left alone,
and listed in the answer; one that is known and cannot be served yet is refused, so that nobody waits for an effect.
"""

import contextlib
import gc
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import Annotated, ClassVar, Literal, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, field_validator, model_validator
from starlette.requests import Request

from pinyon.app.api.errors import invalid
from pinyon.app.api.guard import Caller
from pinyon.app.ask import Ask, Prompt, SamplingChoice
from pinyon.app.keep_alive import KeepAlive
from pinyon.app.limits import MAX_CHOICES, MAX_MODEL_NAME_CHARS, MAX_USER_STOPS
from pinyon.engine import grammar
from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.request import (
    MAX_LOGIT_BIAS,
    MAX_STOP_BYTES,
    MAX_TOKENS,
    MIN_DIVISOR,
    SEED_LIMIT,
    Grammar,
    Priority,
    Speculate,
)

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)  # not inside a literal of Lark
SCHEMAS = "#/components/schemas/"
"""Where the OpenAPI document keeps them."""
DIGITS = "^[0-9]{1,9}$"


def bounded(most: int, least: int | None = None) -> object:
    """Return how long a list may be. Its first wrong item ends its validation: an error costs far more than an item."""
    return Field(min_length=least, max_length=most, fail_fast=True)


ModelName = Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Fields(BaseModel):
    """An object of a request; `ignored` are the fields in it, and in the objects inside, that mean nothing here."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    def ignored(self) -> list[str]:
        extra = sorted(name for name, value in (self.model_extra or {}).items() if value is not None)
        inside = (_ignored_in(getattr(self, name), name) for name in type(self).model_fields)
        return [*extra, *chain.from_iterable(inside)]


def _ignored_in(value: object, place: str) -> Iterator[str]:
    if isinstance(value, Fields):
        yield from (f"{place}.{name}" for name in value.ignored())
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _ignored_in(item, f"{place}.{index}")


class StreamOptions(Fields):
    include_usage: bool | None = None


class SamplingFields(Fields):
    """What a client may ask about the answer, whatever the prompt is."""

    refused: ClassVar[dict[str, str]] = dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "json_schema"),
        "an answer is shaped by response_format, regex or grammar here",
    )
    """Fields of the API that are not served yet, and why; a value that asks for nothing (null, false, empty) is let pass."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenCount | None = None
    stop: str | Annotated[list[str], bounded(MAX_USER_STOPS)] | None = None
    seed: Annotated[int, Field(ge=0, lt=SEED_LIMIT - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Annotated[float, Field(ge=MIN_DIVISOR, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        dict[Annotated[str, StringConstraints(pattern=DIGITS)], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = None
    ignore_eos: bool | None = None
    user: str | None = None
    cache: Literal["on", "off"] | None = None
    private: bool | None = None
    deterministic: bool | None = None
    priority: Literal["interactive", "batch"] | None = None
    speculate: Literal["auto", "suffix", "off"] | None = None
    ttft_deadline_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    keep_alive: float | Annotated[str, Field(max_length=40)] | None = None
    regex: str | None = None
    grammar: str | None = None

    @field_validator("stop")
    @classmethod
    def _usable_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        for text in stops:
            size = len(text.encode("utf-8", "surrogatepass"))
            if not 0 < size <= MAX_STOP_BYTES or "\0" in text:
                raise ValueError(f"each string has 1 to {MAX_STOP_BYTES} bytes and no NUL; one has {size:,} bytes")
        return stop

    @field_validator("keep_alive")
    @classmethod
    def _usable_time(cls, asked: float | str | None) -> float | str | None:
        if asked is not None:
            KeepAlive.of(asked)
        return asked

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, bias: object) -> object:
        if isinstance(bias, dict) and len(bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"there are {len(bias):,} tokens, the limit is {MAX_LOGIT_BIAS:,}")
        return bias

    @model_validator(mode="after")
    def _asks_for_nothing_refused(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value and name in self.refused:
                raise invalid(name, f"{name}: {self.refused[name]}")
        return self

    def ignored(self) -> list[str]:
        return [name for name in super().ignored() if name not in self.refused]

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def kept_alive(self) -> KeepAlive | None:
        return None if self.keep_alive is None else KeepAlive.of(self.keep_alive)

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self) -> SamplingChoice:
        bias = (
            None if self.logit_bias is None else tuple((int(token), value) for token, value in self.logit_bias.items())
        )
        return SamplingChoice(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            seed=self.seed,
            typical_p=self.typical_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=bias,
        )

    def ask_of(
        self, caller: Caller, prompt: Prompt, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None
    ) -> Ask:
        """Return what is asked of the model."""
        return Ask(
            prompt,
            self.sampling(),
            max_tokens,
            self.stops(),
            self.n or 1,
            logprobs,
            grammar,
            use_cache=self.cache != "off",
            private=bool(self.private),
            deterministic=self.deterministic,
            namespace=caller.namespace,
            priority=Priority(self.priority or Priority.INTERACTIVE),
            client=caller.client(self.user),
            ttft_deadline_s=self.ttft_deadline_s,
            speculate=None if self.speculate is None else Speculate(self.speculate),
            ignore_eos=bool(self.ignore_eos),
        )

    def grammars(self) -> Iterable[tuple[str, Grammar]]:
        """Yield the grammars asked for, with their fields' names. Raises ApiError for one that cannot be used."""
        if self.regex is not None:
            yield "regex", checked("regex", grammar.regex, self.regex)
        if self.grammar is not None:
            make = grammar.gbnf if _GBNF_RULE.search(self.grammar) else grammar.lark
            yield "grammar", checked("grammar", make, self.grammar)

    def only_grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError where several are asked for."""
        found = dict(self.grammars())
        if len(found) > 1:
            raise invalid(list(found)[1], f"{' and '.join(found)} both shape the answer: send one of them")
        return next(iter(found.values()), None)


FieldsT = TypeVar("FieldsT", bound=Fields)
_Source = TypeVar("_Source")


def json_body(model: type[FieldsT]) -> Callable[[Request], Awaitable[FieldsT]]:
    """Return what reads a request's body as such an object, whatever its content type; it raises pydantic's ValidationError."""

    async def parse(request: Request) -> FieldsT:
        body = await request.body()
        with _no_collection():
            return model.model_validate_json(body)

    return parse


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector off. It would look again and again at the objects of a large body, none of which is garbage,
    for four times as long as the parser takes; and no other thread runs meanwhile, as the parser keeps the interpreter's lock.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def checked(param: str, make: Callable[[_Source], Grammar], source: _Source) -> Grammar:
    """Return the grammar that is made of a field's value. Raises ApiError that names the field."""
    try:
        return make(source)
    except InvalidRequestError as error:
        raise invalid(param, str(error)) from error


def documented(body: type[Fields], answer: type[msgspec.Struct]) -> dict[str, JsonValue]:
    """Return what a route's entry in the OpenAPI document says about its body and its answer; `openapi` fills in the parts."""
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference(body)}}},
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": reference(answer)}}}
        },
    }


def reference(kind: type) -> dict[str, JsonValue]:
    return {"$ref": f"{SCHEMAS}{kind.__name__}"}
